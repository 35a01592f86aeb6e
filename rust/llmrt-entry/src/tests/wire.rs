//! Streams on HTTP/1.1, whose chunks leave past hyper.

use llmrt_wire::FinishReason;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::client::{COMPLETIONS, Client, Version};
use super::on_one_thread;
use super::rig::{Rig, end, token};

#[test]
fn what_is_at_hand_for_a_stream_is_one_write() {
    on_one_thread(async {
        let mut rig = Rig::new(json!({})).await;
        let mut streams = Vec::new();
        for _ in 0..8 {
            let mut client = Client::new(rig.address, Version::Http1).await;
            let body = json!({"prompt": [1], "stream": true});
            let answer = client.post(COMPLETIONS, &body).await;
            streams.push((client, rig.core.request().await.id, answer));
        }
        for step in 0..8 {
            let before = rig.shard.connections.writes();
            for word in ["a", "b"] {
                let text = format!("{word}{step}");
                let rows: Vec<_> = streams.iter().map(|(_, id, _)| token(*id, &text)).collect();
                rig.core.step(&rows);
            }
            for (_, _, answer) in &mut streams {
                assert_eq!(answer.text().await, format!("a{step}"));
                assert_eq!(answer.text().await, format!("b{step}"));
            }
            assert_eq!(rig.shard.connections.writes() - before, 8);
        }
    });
}

#[test]
fn a_reader_that_pauses_gets_every_byte_in_order() {
    on_one_thread(async {
        // More than any socket holds, none of it cut.
        const ROWS: usize = 2000;
        let text = |row: usize| format!("{row}:{}", "x".repeat(7000));
        let mut rig = Rig::new(json!({"response_buffer_bytes": 64 << 20})).await;
        let mut client = Client::new(rig.address, Version::Http1).await;
        for _ in 0..2 {
            let mut answer = client
                .post(COMPLETIONS, &json!({"prompt": [1], "stream": true}))
                .await;
            let id = rig.core.request().await.id;
            for row in 0..ROWS {
                rig.core.step(&[token(id, &text(row))]);
                // The entry writes what it has before more comes.
                tokio::task::yield_now().await;
            }
            for row in 0..ROWS {
                assert_eq!(answer.text().await, text(row));
                // Chunks go on beside those that wait.
                if row % 100 == 0 {
                    rig.core.step(&[token(id, &text(ROWS + row / 100))]);
                }
            }
            for row in ROWS..ROWS + ROWS / 100 {
                assert_eq!(answer.text().await, text(row));
            }
            rig.core.step(&[end(id, FinishReason::Length)]);
            assert_eq!(answer.events().await.last().unwrap(), "[DONE]");
            rig.idle().await;
        }
    });
}

#[test]
fn http_1_0_has_no_chunks() {
    on_one_thread(async {
        let mut rig = Rig::new(json!({})).await;
        let mut socket = TcpStream::connect(rig.address).await.unwrap();
        let body = json!({"prompt": [1], "stream": true}).to_string();
        let head = format!(
            "POST {COMPLETIONS} HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        socket.write_all((head + &body).as_bytes()).await.unwrap();
        let id = rig.core.request().await.id;
        for word in ["one", "two"] {
            rig.core.step(&[token(id, word)]);
            tokio::task::yield_now().await;
        }
        rig.core.step(&[end(id, FinishReason::Length)]);
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(
            body.split_inclusive("\n\n")
                .all(|event| event.starts_with("data: ")),
            "{body}"
        );
        assert!(body.ends_with("data: [DONE]\n\n"), "{body}");
    });
}
