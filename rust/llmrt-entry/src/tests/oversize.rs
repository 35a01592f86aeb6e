//! What cannot be taken is refused before it costs anything.

use serde_json::{Value, json};

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
