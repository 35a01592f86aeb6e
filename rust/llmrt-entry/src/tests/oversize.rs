//! What cannot be taken is refused before it costs anything.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::client::{BOTH, COMPLETIONS, Client, Version};
use super::on_one_thread;
use super::rig::Rig;

const CHAT: &str = "/v1/chat/completions";

async fn refusal(client: &mut Client, path: &str, body: Value) -> Value {
    let answer = client.post(path, &body).await;
    assert_eq!(answer.status, 400, "{path}");
    answer.json().await["error"].take()
}

/// Tokens of the rig's model are bytes, and its context is 64 of them.
#[test]
fn texts_that_no_context_holds_are_not_tokenized() {
    for version in BOTH {
        on_one_thread(async {
            let rig = Rig::new(json!({})).await;
            let mut client = Client::new(rig.address, version).await;
            let long = "a".repeat(65);
            let messages = json!({"messages": [{"role": "user", "content": long}]});
            for (path, body, param) in [
                (COMPLETIONS, json!({"prompt": long}), "prompt"),
                (CHAT, messages.clone(), "messages"),
                ("/tokenize", json!({"prompt": long}), "prompt"),
                ("/tokenize", messages, "messages"),
            ] {
                let error = refusal(&mut client, path, body).await;
                assert_eq!(error["code"], "context_length_exceeded");
                assert_eq!(error["param"], param);
                let message = error["message"].as_str().unwrap();
                assert!(message.contains("bytes"), "{message}");
            }
            rig.idle().await;
        });
    }
}

#[test]
fn texts_that_might_fit_are_counted() {
    on_one_thread(async {
        let rig = Rig::new(json!({})).await;
        let mut client = Client::new(rig.address, Version::Http1).await;
        let full = json!({"prompt": "a".repeat(64)});
        let error = refusal(&mut client, COMPLETIONS, full.clone()).await;
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("has 64. Shorten it."), "{message}");
        let answer = client.post("/tokenize", &full).await;
        assert_eq!(answer.json().await["count"], 64);
    });
}

/// Reads up to the end of an error's body.
async fn raw_refusal(socket: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    while !answer.ends_with(b"}}") {
        assert_ne!(socket.read_buf(&mut answer).await.unwrap(), 0);
    }
    String::from_utf8(answer).unwrap()
}

#[test]
fn an_announced_size_is_refused_at_once() {
    for (expect, size) in [
        ("", 1001),
        ("", usize::MAX / 2),
        ("expect: 100-continue\r\n", 1001),
    ] {
        on_one_thread(async {
            let rig = Rig::new(json!({"max_body_bytes": 1000, "body_timeout_s": 600})).await;
            let mut socket = TcpStream::connect(rig.address).await.unwrap();
            let head = format!(
                "POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\n{expect}\
                 content-type: application/json\r\ncontent-length: {size}\r\n\r\n"
            );
            socket.write_all(head.as_bytes()).await.unwrap();
            let answer = raw_refusal(&mut socket).await;
            assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
            assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
            assert!(answer.contains("body_too_large"), "{answer}");
            // Who does not look before all is sent is not cut off.
            if expect.is_empty() && size == 1001 {
                socket.write_all(&[b' '; 1001]).await.unwrap();
            } else {
                socket.shutdown().await.unwrap();
            }
            assert_eq!(socket.read_to_end(&mut Vec::new()).await.unwrap(), 0);
        });
    }
}

#[test]
fn a_request_has_one_host() {
    on_one_thread(async {
        let rig = Rig::new(json!({})).await;
        for (version, hosts, status) in [
            ("1.1", "", 400),
            ("1.1", "host: a\r\nhost: a\r\n", 400),
            ("1.0", "host: a\r\nhost: b\r\n", 400),
            ("1.0", "", 200),
            ("1.1", "host:\r\nconnection: close\r\n", 200),
        ] {
            let mut socket = TcpStream::connect(rig.address).await.unwrap();
            let request = format!("GET /health HTTP/{version}\r\n{hosts}\r\n");
            socket.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            socket.read_to_string(&mut answer).await.unwrap();
            let line = format!("HTTP/{version} {status} ");
            assert!(answer.starts_with(&line), "{hosts:?}: {answer}");
            let refused = answer.contains(r#"{"error":{"message":"The request has"#);
            assert_eq!(refused, status == 400, "{answer}");
        }
    });
}
