//! What frames tell beside the text reaches the choices it belongs to.

use llmrt_wire::{
    FinishReason, Finished, LogprobRow, Logprobs, Outcome, PromptLogprobs, Request, TextFrame,
    TokenIds,
};
use serde_json::{Value, json};

use super::client::{COMPLETIONS, Client, Version};
use super::on_one_thread;
use super::rig::Rig;

const CHAT: &str = "/v1/chat/completions";

/// A row of a frame: its request's number, its tokens, the text they complete, whether it is the last.
type Row<'r> = (usize, &'r [u8], &'r str, bool);

/// A frame with every column; the first row of a request that asked for them has its prompt's logprobs.
fn frame(requests: &[Request], rows: &[Row], first: bool) -> TextFrame {
    let mut frame = TextFrame::default();
    let (mut ids, mut logprobs) = (TokenIds::default(), Logprobs::default());
    for (index, &(number, bytes, text, last)) in rows.iter().enumerate() {
        let (row, request) = (index as u32, &requests[number]);
        frame.ids.push(request.id.0);
        frame.counts.push(bytes.len() as u32);
        frame.text.push_str(text);
        frame.ends.push(frame.text.len() as u32);
        let tokens: Vec<u32> = bytes.iter().copied().map(u32::from).collect();
        ids.push(row, &tokens);
        if request.sampling.logprobs.is_some() {
            let values = LogprobRow {
                chosen: &vec![-(number as f32) - 0.5; bytes.len()],
                ..LogprobRow::default()
            };
            logprobs.push(row, values);
        }
        if first && request.sampling.prompt_logprobs.is_some() {
            frame.prompt_logprobs.push(PromptLogprobs {
                row,
                chosen: vec![-3.0; request.prompt.len() - 1].into(),
                ..PromptLogprobs::default()
            });
        }
        if last {
            frame.finished.push(Finished {
                row,
                outcome: Outcome {
                    reason: FinishReason::Length,
                    stop_token: None,
                    stop_string: None,
                    status: 0,
                    message: String::new(),
                },
            });
        }
    }
    frame.tokens = Some(ids);
    frame.logprobs = (!logprobs.rows.is_empty()).then_some(logprobs);
    frame
}

fn chunks(events: &[String]) -> Vec<Value> {
    let (last, chunks) = events.split_last().expect("events");
    assert_eq!(last, "[DONE]");
    let parse = |event: &String| serde_json::from_str(event).unwrap();
    chunks.iter().map(parse).collect()
}

#[test]
fn a_stream_that_ends_inside_a_character_tells_every_token() {
    on_one_thread(async {
        let mut rig = Rig::new(json!({})).await;
        let mut client = Client::new(rig.address, Version::Http2).await;
        let body = json!({
            "messages": [{"role": "user", "content": "Hi"}], "n": 2, "stream": true, "logprobs": true,
            "return_token_ids": true,
        });
        let mut answer = client.post(CHAT, &body).await;
        let requests = rig.submitted().await;
        assert!(
            requests
                .iter()
                .all(|one| one.output.token_ids && one.sampling.logprobs == Some(0))
        );
        rig.core.frame(frame(
            &requests,
            &[(0, b"a", "a", false), (1, b"xy", "xy", false)],
            true,
        ));
        // The last token is half a character, which has no text.
        rig.core.frame(frame(
            &requests,
            &[(1, b"!", "!", true), (0, b"\xc3", "", true)],
            false,
        ));
        let chunks = chunks(&answer.events().await);
        let prompts: Vec<_> = chunks
            .iter()
            .filter(|chunk| !chunk["prompt_token_ids"].is_null())
            .collect();
        assert_eq!(prompts.len(), 1, "a conversation is one prompt");
        assert_eq!(
            prompts[0]["prompt_token_ids"],
            json!(b"<user>Hi<assistant>")
        );
        for (index, tokens) in [(0, b"a\xc3".as_slice()), (1, b"xy!")] {
            let of = chunks.iter().map(|chunk| &chunk["choices"][0]);
            let of: Vec<_> = of.filter(|choice| choice["index"] == index).collect();
            let ids: Vec<_> = of
                .iter()
                .flat_map(|one| one["token_ids"].as_array().unwrap())
                .collect();
            assert_eq!(json!(ids), json!(tokens));
            let told: Vec<_> = of
                .iter()
                .filter_map(|one| one["logprobs"]["content"].as_array())
                .flatten()
                .collect();
            let bytes: Vec<_> = told.iter().map(|token| &token["bytes"][0]).collect();
            assert_eq!(json!(bytes), json!(tokens));
            let logprob = -(index as f32) - 0.5;
            assert!(told.iter().all(|token| token["logprob"] == logprob));
            let ends = of.iter().filter(|one| one["finish_reason"] == "length");
            assert_eq!(ends.count(), 1);
        }
        rig.idle().await;
    });
}

#[test]
fn an_echo_of_each_prompt_comes_with_its_logprobs() {
    for stream in [false, true] {
        on_one_thread(async {
            let mut rig = Rig::new(json!({})).await;
            let mut client = Client::new(rig.address, Version::Http1).await;
            let body = json!({
                "prompt": ["ab", [99, 100, 101]], "echo": true, "logprobs": 0, "max_tokens": 1, "stream": stream,
            });
            let (mut answer, ()) = tokio::join!(client.post(COMPLETIONS, &body), async {
                let requests = rig.submitted().await;
                assert!(
                    requests
                        .iter()
                        .all(|one| one.sampling.prompt_logprobs == Some(0))
                );
                rig.core.frame(frame(
                    &requests,
                    &[(1, b"?", "?", true), (0, b"!", "!", true)],
                    true,
                ));
            });
            let choices: Vec<Value> = if stream {
                let chunks = chunks(&answer.events().await);
                let choices = chunks.iter().map(|chunk| chunk["choices"][0].clone());
                let mut told: Vec<_> = choices.filter(|one| !one["logprobs"].is_null()).collect();
                told.sort_by_key(|one| one["index"].as_u64());
                told
            } else {
                answer.json().await["choices"].as_array().unwrap().clone()
            };
            let expected = [
                ("ab!", json!([null, -3.0, -0.5]), json!([0, 1, 2])),
                ("cde?", json!([null, -3.0, -3.0, -1.5]), json!([0, 1, 2, 3])),
            ];
            assert_eq!(choices.len(), 2);
            for (choice, (text, logprobs, offsets)) in choices.iter().zip(expected) {
                assert_eq!(choice["text"], text);
                assert_eq!(choice["logprobs"]["token_logprobs"], logprobs);
                assert_eq!(choice["logprobs"]["text_offset"], offsets);
            }
            rig.idle().await;
        });
    }
}

#[test]
fn a_deadline_counts_from_the_arrival() {
    on_one_thread(async {
        let mut rig = Rig::new(json!({})).await;
        let mut client = Client::new(rig.address, Version::Http2).await;
        let body = json!({"prompt": "ab", "deadline_ms": 60_000, "stream": true});
        let answer = client.post(COMPLETIONS, &body).await;
        let left = rig.core.request().await.deadline_ms.unwrap();
        assert!((30_000..60_000).contains(&left), "{left}");
        drop(answer);
    });
}
