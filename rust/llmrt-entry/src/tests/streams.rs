//! Answers: streamed and whole, over both protocols, alone and many at once.

use llmrt_wire::FinishReason;
use serde_json::{Value, json};

use super::client::{BOTH, COMPLETIONS, Client, Version};
use super::rig::{Rig, end, token};
use super::{on_one_thread, until};

fn parsed(event: &str) -> Value {
    serde_json::from_str(event).unwrap()
}

#[test]
fn a_stream_arrives_event_by_event() {
    for version in BOTH {
        on_one_thread(async {
            let mut rig = Rig::new(json!({})).await;
            let mut client = Client::new(rig.address, version).await;
            let body = json!({"prompt": [1, 2, 3], "stream": true, "stream_options": {"include_usage": true}});
            let mut answer = client.post(COMPLETIONS, &body).await;
            // The head is there before the first token.
            assert_eq!(answer.status, 200);
            assert_eq!(
                answer.headers["content-type"],
                "text/event-stream; charset=utf-8"
            );
            assert!(answer.headers.contains_key("x-request-id"));
            let request = rig.core.request().await;
            assert_eq!(*request.prompt, [1, 2, 3]);
            assert_eq!(request.sampling.max_tokens, 16);
            rig.core.step(&[token(request.id, "Hé").first()]);
            assert_eq!(answer.text().await, "Hé");
            rig.core.step(&[token(request.id, "llo")]);
            assert_eq!(answer.text().await, "llo");
            rig.core.step(&[end(request.id, FinishReason::Length)]);
            let events = answer.events().await;
            assert_eq!(parsed(&events[0])["choices"][0]["finish_reason"], "length");
            let usage = &parsed(&events[1])["usage"];
            assert_eq!(
                (&usage["prompt_tokens"], &usage["completion_tokens"]),
                (&json!(3), &json!(2))
            );
            assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 1);
            assert_eq!(events[2..], ["[DONE]"]);
            rig.idle().await;
        });
    }
}

#[test]
fn a_whole_answer_arrives_at_the_end() {
    for version in BOTH {
        on_one_thread(async {
            let mut rig = Rig::new(json!({})).await;
            let mut client = Client::new(rig.address, version).await;
            let body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9, "model": "org/alias"});
            let (answer, ()) = tokio::join!(client.post("/v1/chat/completions", &body), async {
                let request = rig.core.request().await;
                assert_eq!(request.prompt.len(), "<user>Hi<assistant>".len());
                rig.core.step(&[token(request.id, "Good ").first()]);
                rig.core.step(&[
                    token(request.id, "day"),
                    end(request.id, FinishReason::Stop),
                ]);
            });
            assert_eq!(answer.status, 200);
            let answer = answer.json().await;
            assert_eq!(answer["choices"][0]["message"]["content"], "Good day");
            assert_eq!(answer["choices"][0]["finish_reason"], "stop");
            assert_eq!(answer["usage"]["completion_tokens"], 2);
            assert_eq!(answer["model"], "org/alias");
            rig.idle().await;
        });
    }
}

#[test]
fn an_error_before_the_first_token_is_a_status_or_an_event() {
    on_one_thread(async {
        let mut rig = Rig::new(json!({})).await;
        let mut client = Client::new(rig.address, Version::Http2).await;
        let body = json!({"prompt": [1]});
        let (answer, ()) = tokio::join!(client.post(COMPLETIONS, &body), async {
            let request = rig.core.request().await;
            rig.core.step(&[end(request.id, FinishReason::Error)]);
        });
        assert_eq!(answer.status, 500);
        assert_eq!(answer.json().await["error"]["message"], "broken");
        let mut answer = client
            .post(COMPLETIONS, &json!({"prompt": [1], "stream": true}))
            .await;
        let request = rig.core.request().await;
        rig.core.step(&[end(request.id, FinishReason::Error)]);
        let events = answer.events().await;
        assert_eq!(parsed(&events[0])["error"]["message"], "broken");
        assert_eq!(events[1..], ["[DONE]"]);
        rig.idle().await;
    });
}

#[test]
fn two_live_requests_may_carry_the_same_client_id() {
    on_one_thread(async {
        let mut rig = Rig::new(json!({})).await;
        let mut client = Client::new(rig.address, Version::Http2).await;
        let headers = [
            ("content-type", "application/json"),
            ("x-request-id", "same"),
        ];
        let body = json!({"prompt": [1], "stream": true}).to_string();
        let mut answers = Vec::new();
        for word in ["one", "two"] {
            let answer = client
                .request(http::Method::POST, COMPLETIONS, &headers, body.as_bytes())
                .await;
            assert_eq!(answer.headers["x-request-id"], "same");
            answers.push((word, rig.core.request().await.id, answer));
        }
        for (word, id, _) in &answers {
            rig.core
                .step(&[token(*id, word), end(*id, FinishReason::Stop)]);
        }
        for (word, _, mut answer) in answers {
            assert_eq!(answer.text().await, word);
            assert_eq!(answer.events().await.last().unwrap(), "[DONE]");
        }
    });
}

#[test]
fn a_step_for_64_streams_of_a_connection_is_one_write() {
    on_one_thread(async {
        let mut rig = Rig::new(json!({})).await;
        let mut client = Client::new(rig.address, Version::Http2).await;
        let mut streams = Vec::new();
        for number in 0..64 {
            let answer = client
                .post(COMPLETIONS, &json!({"prompt": [number], "stream": true}))
                .await;
            streams.push((rig.core.request().await.id, answer));
        }
        for step in 0..8 {
            let before = rig.shard.connections.writes();
            let rows: Vec<_> = streams
                .iter()
                .map(|(id, _)| token(*id, &format!(" w{step}")))
                .collect();
            rig.core.step(&rows);
            for (_, answer) in &mut streams {
                assert_eq!(answer.text().await, format!(" w{step}"));
            }
            let writes = rig.shard.connections.writes() - before;
            // A second one may acknowledge what the client sent meanwhile.
            assert!(writes <= 2, "{writes} writes for one step");
        }
        let ends: Vec<_> = streams
            .iter()
            .map(|(id, _)| end(*id, FinishReason::Length))
            .collect();
        rig.core.step(&ends);
        for (_, answer) in &mut streams {
            assert_eq!(answer.events().await.len(), 2);
        }
        rig.idle().await;
    });
}

#[test]
fn a_thousand_streams_end_once_each() {
    on_one_thread(async {
        let mut rig = Rig::new(json!({})).await;
        let mut client = Client::new(rig.address, Version::Http2).await;
        let mut streams = Vec::new();
        for _ in 0..1000 {
            let answer = client
                .post(COMPLETIONS, &json!({"prompt": [1], "stream": true}))
                .await;
            streams.push((rig.core.request().await.id, answer));
        }
        let rows: Vec<_> = streams
            .iter()
            .flat_map(|(id, _)| [token(*id, &id.to_string()), end(*id, FinishReason::Length)])
            .collect();
        rig.core.step(&rows);
        for (id, answer) in &mut streams {
            assert_eq!(answer.text().await, id.to_string());
            assert_eq!(answer.events().await[1..], ["[DONE]"]);
        }
        rig.idle().await;
        let ended = "llmrt_request_success_total{model_name=\"m\",finished_reason=\"length\"} 1000";
        until(|| rig.shard.metrics.render().contains(ended)).await;
    });
}
