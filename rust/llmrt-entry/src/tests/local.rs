//! Requests of the worker's own process.

use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use bytes::Bytes;
use llmrt_wire::FinishReason;
use serde_json::{Value, json};
use socket2::SockRef;

use super::client::COMPLETIONS;
use super::rig::{Rig, end, token};
use super::{on_one_thread, until};
use crate::local::{LocalClient, LocalResponse};
use crate::shard::Command;

fn post(client: &LocalClient, body: &Value) -> LocalResponse {
    let body = Bytes::from(body.to_string());
    client.request("POST", COMPLETIONS, body).unwrap()
}

/// Reads to the end, waiting for the bell alone.
async fn whole(client: &LocalClient, response: &mut LocalResponse) -> String {
    let mut body = Vec::new();
    while !response.ended() {
        until(|| client.ready().contains(&response.key())).await;
        body.extend_from_slice(&response.take());
    }
    String::from_utf8(body).unwrap()
}

#[test]
fn an_answer_is_that_of_a_connection() {
    on_one_thread(async {
        let mut rig = Rig::new(json!({})).await;
        let client = LocalClient::new(rig.commands.clone()).unwrap();
        let mut response = post(&client, &json!({"prompt": [1]}));
        let id = rig.core.request().await.id;
        rig.core
            .step(&[token(id, "ab"), end(id, FinishReason::Stop)]);
        let body: Value = serde_json::from_str(&whole(&client, &mut response).await).unwrap();
        assert_eq!(response.status(), Some(200));
        assert_eq!(body["choices"][0]["text"], "ab");
        let mut refused = post(&client, &json!({"prompt": [1], "top_p": 2}));
        let body: Value = serde_json::from_str(&whole(&client, &mut refused).await).unwrap();
        assert_eq!(refused.status(), Some(400));
        assert_eq!(body["error"]["param"], "top_p");
        rig.idle().await;
    });
}

#[test]
fn dropping_a_response_aborts_at_any_time() {
    for streamed in [false, true] {
        on_one_thread(async {
            let mut rig = Rig::new(json!({})).await;
            let client = LocalClient::new(rig.commands.clone()).unwrap();
            let mut response = post(&client, &json!({"prompt": [1], "stream": streamed}));
            let id = rig.core.request().await.id;
            if streamed {
                rig.core.step(&[token(id, "a")]);
                until(|| !response.take().is_empty()).await;
            }
            drop(response);
            assert_eq!(rig.core.aborted().await, [id]);
            rig.idle().await;
        });
    }
}

#[test]
fn a_reader_that_stops_holds_little_and_misses_nothing() {
    on_one_thread(async {
        let mut rig = Rig::new(json!({})).await;
        let client = LocalClient::new(rig.commands.clone()).unwrap();
        let mut response = post(&client, &json!({"prompt": [1], "stream": true}));
        let id = rig.core.request().await.id;
        for _ in 0..100 {
            rig.core.step(&[token(id, "x")]);
        }
        rig.core.step(&[end(id, FinishReason::Length)]);
        let body = whole(&client, &mut response).await;
        let events = body
            .split_terminator("\n\n")
            .map(|event| event.strip_prefix("data: ").unwrap());
        let text: String = events
            .take_while(|data| *data != "[DONE]")
            .map(|data| {
                let chunk: Value = serde_json::from_str(data).unwrap();
                chunk["choices"][0]["text"].as_str().unwrap().to_owned()
            })
            .collect();
        assert_eq!(text, "x".repeat(100));
        assert!(body.ends_with("data: [DONE]\n\n"), "{body}");
        rig.idle().await;
    });
}

#[test]
fn the_bell_is_readable_while_there_is_news() {
    on_one_thread(async {
        let rig = Rig::new(json!({})).await;
        let client = LocalClient::new(rig.commands.clone()).unwrap();
        let bell = UnixStream::from(client.as_fd().try_clone_to_owned().unwrap());
        let silent = || {
            let peeked = SockRef::from(&bell).peek(&mut [MaybeUninit::uninit()]);
            peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        };
        assert!(silent());
        let mut response = client.request("GET", "/health", Bytes::new()).unwrap();
        until(|| !silent()).await;
        whole(&client, &mut response).await;
        assert_eq!(response.status(), Some(200));
        client.ready();
        assert!(silent());
    });
}

#[test]
fn a_worker_that_has_ended_ends_every_answer() {
    on_one_thread(async {
        let Rig {
            commands, served, ..
        } = Rig::new(json!({})).await;
        let client = LocalClient::new(commands).unwrap();
        served.abort();
        let _ = served.await;
        let mut response = post(&client, &json!({"prompt": [1]}));
        assert_eq!(whole(&client, &mut response).await, "");
        assert_eq!(response.status(), None);
    });
}

#[test]
fn a_worker_that_drains_refuses_at_once() {
    on_one_thread(async {
        let mut rig = Rig::new(json!({})).await;
        let client = LocalClient::new(rig.commands.clone()).unwrap();
        let mut open = post(&client, &json!({"prompt": [1]}));
        let id = rig.core.request().await.id;
        let timeout = std::time::Duration::from_secs(600);
        rig.commands.send(Command::Shutdown { timeout }).unwrap();
        until(|| rig.shard.draining()).await;
        // Let the shutdown queue for every place first.
        until(|| rig.shard.connections.places() == 0).await;
        let mut refused = post(&client, &json!({"prompt": [1]}));
        whole(&client, &mut refused).await;
        assert_eq!(refused.status(), Some(503));
        rig.core.step(&[end(id, FinishReason::Stop)]);
        whole(&client, &mut open).await;
        assert_eq!(open.status(), Some(200));
        rig.served.await.unwrap();
    });
}
