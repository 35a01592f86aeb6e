//! Bounds on what clients may hold, send or delay.

use std::time::Duration;

use http::Method;
use llmrt_wire::FinishReason;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::client::{BOTH, COMPLETIONS, Client, Version};
use super::rig::{Rig, end};
use super::{on_one_thread, until};

const JSON: (&str, &str) = ("content-type", "application/json");

#[test]
fn permits_bound_open_requests() {
    for version in BOTH {
        on_one_thread(async {
            let mut rig = Rig::new(json!({"max_requests": 1})).await;
            let mut first = Client::new(rig.address, version).await;
            let mut second = Client::new(rig.address, version).await;
            let body = json!({"prompt": [1], "stream": true});
            let mut open = first.post(COMPLETIONS, &body).await;
            let id = rig.core.request().await.id;
            let refused = second.post(COMPLETIONS, &body).await;
            assert_eq!(refused.status, 429);
            assert_eq!(refused.headers["retry-after"], "1");
            assert_eq!(refused.headers["retry-after-ms"], "1000");
            assert_eq!(refused.json().await["error"]["code"], "rate_limit_exceeded");
            rig.core.step(&[end(id, FinishReason::Stop)]);
            open.events().await;
            rig.idle().await;
            assert_eq!(second.post(COMPLETIONS, &body).await.status, 200);
        });
    }
}

#[test]
fn the_scheduler_may_refuse_by_credit() {
    on_one_thread(async {
        let mut rig = Rig::new(json!({"max_requests": 2000})).await;
        let mut client = Client::new(rig.address, Version::Http2).await;
        let body = json!({"prompt": [1], "stream": true});
        let mut answers = Vec::new();
        for _ in 0..1024 {
            answers.push(client.post(COMPLETIONS, &body).await);
            rig.core.request().await;
        }
        // The 1024 streams of the connection are taken; another one is needed to be refused by the scheduler.
        let mut other = Client::new(rig.address, Version::Http2).await;
        let refused = other.post(COMPLETIONS, &body).await;
        assert_eq!(refused.status, 429);
        assert_eq!(rig.shard.gate.permits_taken(), 1024);
        rig.core.credit();
        let mut taken = false;
        while !taken {
            taken = other.post(COMPLETIONS, &body).await.status == 200;
        }
    });
}

#[test]
fn big_bodies_are_413() {
    for version in BOTH {
        on_one_thread(async {
            let rig = Rig::new(json!({"max_body_bytes": 1000})).await;
            let mut client = Client::new(rig.address, version).await;
            for size in [1001, 1999] {
                let body = vec![b' '; size];
                let answer = client
                    .request(Method::POST, COMPLETIONS, &[JSON], &body)
                    .await;
                assert_eq!(answer.status, 413, "{size}");
                assert_eq!(answer.json().await["error"]["code"], "body_too_large");
                // What follows such a body is not looked for; a stream has nothing that follows.
                if version == Version::Http1 {
                    client = Client::new(rig.address, version).await;
                }
            }
            assert_eq!(client.get("/health").await.status, 200);
        });
    }
}

#[test]
fn late_bodies_are_408() {
    on_one_thread(async {
        let rig = Rig::new(json!({"body_timeout_s": 0.05})).await;
        let mut socket = TcpStream::connect(rig.address).await.unwrap();
        let head = format!(
            "POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{{"
        );
        socket.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    });
}

#[test]
fn slow_heads_and_prefaces_are_hung_up_on() {
    for start in [
        "",
        "PRI * HTTP/2.0\r\n\r\nSM",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: x\r\nx-slow: ",
    ] {
        on_one_thread(async {
            let rig = Rig::new(json!({"header_timeout_s": 0.05})).await;
            let mut socket = TcpStream::connect(rig.address).await.unwrap();
            socket.write_all(start.as_bytes()).await.unwrap();
            until(|| rig.shard.connections.open() == 1).await;
            socket.read_to_end(&mut Vec::new()).await.unwrap();
            until(|| rig.shard.connections.open() == 0).await;
        });
    }
}

#[test]
fn a_deadline_for_the_head_is_none_for_the_answer() {
    on_one_thread(async {
        let mut rig = Rig::new(json!({"header_timeout_s": 0.05})).await;
        for version in BOTH {
            let mut client = Client::new(rig.address, version).await;
            let mut answer = client
                .post(COMPLETIONS, &json!({"prompt": [1], "stream": true}))
                .await;
            let id = rig.core.request().await.id;
            tokio::time::sleep(Duration::from_millis(200)).await;
            rig.core.step(&[end(id, FinishReason::Stop)]);
            assert_eq!(answer.events().await.last().unwrap(), "[DONE]");
        }
    });
}

#[test]
fn header_fields_are_bounded_on_both_protocols() {
    for version in BOTH {
        on_one_thread(async {
            let rig = Rig::new(json!({})).await;
            let mut client = Client::new(rig.address, version).await;
            let names: Vec<String> = (0..101).map(|number| format!("x-{number}")).collect();
            let headers: Vec<(&str, &str)> =
                names.iter().map(|name| (name.as_str(), "1")).collect();
            let answer = client.request(Method::GET, "/health", &headers, b"").await;
            assert_eq!(answer.status, 431);
        });
    }
}

#[test]
fn connections_above_the_cap_wait() {
    on_one_thread(async {
        let rig = Rig::new(json!({"max_connections": 1})).await;
        let mut first = Client::new(rig.address, Version::Http1).await;
        assert_eq!(first.get("/health").await.status, 200);
        let mut second = Client::new(rig.address, Version::Http1).await;
        let (answer, ()) = tokio::join!(second.get("/health"), async {
            assert_eq!(first.get("/health").await.status, 200);
            assert_eq!(rig.shard.connections.open(), 1);
            first.hang_up();
        });
        assert_eq!(answer.status, 200);
    });
}

const GET: &[u8] = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n";

/// Reads one answer to [`GET`].
async fn healthy(socket: &mut TcpStream) {
    let mut answer = Vec::new();
    while !answer.ends_with(b"}") {
        assert_ne!(socket.read_buf(&mut answer).await.unwrap(), 0);
    }
    assert!(answer.starts_with(b"HTTP/1.1 200 "));
}

#[test]
fn a_pause_between_requests_may_be_longer_than_a_head() {
    on_one_thread(async {
        let rig = Rig::new(json!({"header_timeout_s": 0.05, "keep_alive_timeout_s": 600})).await;
        let mut socket = TcpStream::connect(rig.address).await.unwrap();
        for _ in 0..2 {
            socket.write_all(GET).await.unwrap();
            healthy(&mut socket).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        // A head that has begun has its own time, also after a pause.
        socket.write_all(&GET[..20]).await.unwrap();
        socket.read_to_end(&mut Vec::new()).await.unwrap();
        until(|| rig.shard.connections.open() == 0).await;
    });
}

#[test]
fn a_pause_ends() {
    on_one_thread(async {
        let rig = Rig::new(json!({"header_timeout_s": 600, "keep_alive_timeout_s": 0.05})).await;
        let mut socket = TcpStream::connect(rig.address).await.unwrap();
        socket.write_all(GET).await.unwrap();
        healthy(&mut socket).await;
        socket.read_to_end(&mut Vec::new()).await.unwrap();
        until(|| rig.shard.connections.open() == 0).await;
    });
}

#[test]
fn who_sends_and_never_reads_is_hung_up_on() {
    on_one_thread(async {
        let rig = Rig::new(json!({"stall_timeout_s": 0.1})).await;
        let mut socket = TcpStream::connect(rig.address).await.unwrap();
        let requests = GET.repeat(100);
        // Ends with the connection alone.
        while socket.write_all(&requests).await.is_ok() {}
        until(|| rig.shard.connections.open() == 0).await;
    });
}

#[test]
fn a_whole_answer_without_a_window_keeps_its_permit_until_it_is_cut() {
    on_one_thread(async {
        let mut rig = Rig::new(json!({"stall_timeout_s": 0.3})).await;
        let mut client = Client::with_window(rig.address, Version::Http2, 0).await;
        let body = json!({"prompt": [1]});
        let (answer, ()) = tokio::join!(client.post(COMPLETIONS, &body), async {
            let id = rig.core.request().await.id;
            rig.core.step(&[end(id, FinishReason::Stop)]);
        });
        assert_eq!(answer.status, 200);
        assert_eq!(rig.shard.gate.permits_taken(), 1);
        rig.idle().await;
        answer.whole().await.unwrap_err();
    });
}

#[test]
fn bodies_are_bounded_together() {
    for version in BOTH {
        on_one_thread(async {
            let limits = json!({"max_body_bytes": 1000, "max_bodies_bytes": 1000});
            let rig = Rig::new(limits).await;
            let mut body = br#"{"prompt": "a"}"#.to_vec();
            body.resize(900, b' ');
            let head = format!(
                "POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            let mut slow = TcpStream::connect(rig.address).await.unwrap();
            slow.write_all(head.as_bytes()).await.unwrap();
            slow.write_all(&body[..800]).await.unwrap();
            until(|| rig.shard.bodies.left() == 200).await;
            let mut client = Client::new(rig.address, version).await;
            for path in ["/tokenize", "/detokenize", COMPLETIONS] {
                let refused = client
                    .request(Method::POST, path, &[JSON], &body[..300])
                    .await;
                assert_eq!(refused.status, 429, "{path}");
                assert_eq!(refused.headers["retry-after"], "1");
            }
            // Little ones fit beside it.
            let small = client.post("/tokenize", &json!({"prompt": "a"})).await;
            assert_eq!(small.status, 200);
            slow.write_all(&body[800..]).await.unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"}") {
                assert_ne!(slow.read_buf(&mut answer).await.unwrap(), 0);
            }
            assert!(answer.starts_with(b"HTTP/1.1 200 "));
            until(|| rig.shard.bodies.left() == 1000).await;
            assert!(rig.shard.metrics.render().contains(r#"reason="bodies""#));
        });
    }
}

#[test]
fn whoever_leaves_gives_the_room_of_its_body_back() {
    on_one_thread(async {
        let rig = Rig::new(json!({"max_body_bytes": 1000, "max_bodies_bytes": 1000})).await;
        let mut socket = TcpStream::connect(rig.address).await.unwrap();
        let head = "POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{";
        socket.write_all(head.as_bytes()).await.unwrap();
        until(|| rig.shard.bodies.left() == 999).await;
        drop(socket);
        until(|| rig.shard.bodies.left() == 1000).await;
    });
}

#[test]
fn long_bodies_are_answered_like_short_ones() {
    on_one_thread(async {
        let text = "word ".repeat(20_000);
        let rig = Rig::with(|config| config["model"]["max_model_len"] = text.len().into()).await;
        let mut client = Client::new(rig.address, Version::Http2).await;
        let answer = client.post("/tokenize", &json!({"prompt": text})).await;
        let tokens = answer.json().await["tokens"].take();
        assert_eq!(tokens.as_array().unwrap().len(), text.len());
        let answer = client.post("/detokenize", &json!({"tokens": tokens})).await;
        assert_eq!(answer.json().await["prompt"], text);
        let messages = json!([{"role": "user", "content": text}]);
        let answer = client
            .post("/v1/chat/completions", &json!({"messages": messages}))
            .await;
        assert_eq!(
            answer.json().await["error"]["code"],
            "context_length_exceeded"
        );
        let answer = client.post(COMPLETIONS, &json!({"prompt": tokens})).await;
        assert_eq!(
            answer.json().await["error"]["code"],
            "context_length_exceeded"
        );
    });
}
