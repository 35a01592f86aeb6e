//! Answers with several choices: one request of the core for each, one response for all.

use std::time::Duration;

use llmrt_wire::FinishReason;
use serde_json::{Value, json};

use super::client::{BOTH, COMPLETIONS, Client, Version};
use super::rig::{Rig, end, token};
use super::{on_one_thread, until};

const CHAT: &str = "/v1/chat/completions";

fn chunks(events: &[String]) -> Vec<Value> {
    let (last, chunks) = events.split_last().expect("events");
    assert_eq!(last, "[DONE]");
    chunks
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect()
}

#[test]
fn choices_share_a_prompt_and_differ_in_their_seeds() {
    on_one_thread(async {
        let mut rig = Rig::new(json!({})).await;
        let mut client = Client::new(rig.address, Version::Http2).await;
        let body = json!({"prompt": ["ab", [7, 8]], "n": 2, "seed": 5, "stream": true});
        let answer = client.post(COMPLETIONS, &body).await;
        let requests = rig.submitted().await;
        let prompts: Vec<_> = requests.iter().map(|request| &*request.prompt).collect();
        assert_eq!(
            prompts,
            [b"ab".map(u32::from).as_slice(), &[97, 98], &[7, 8], &[7, 8]]
        );
        let seeds: Vec<_> = requests
            .iter()
            .map(|request| request.sampling.seed.unwrap())
            .collect();
        assert_eq!((seeds[0], seeds[2]), (5, 5), "as a request for one");
        assert!(seeds[1] == seeds[3] && seeds[1] != 5);
        drop(answer);
    });
}

#[test]
fn a_stream_has_one_finish_for_each_choice_one_usage_and_one_end() {
    for version in BOTH {
        on_one_thread(async {
            let mut rig = Rig::new(json!({})).await;
            let mut client = Client::new(rig.address, version).await;
            let body = json!({
                "messages": [{"role": "user", "content": "Hi"}], "n": 3, "stream": true,
                "stream_options": {"include_usage": true},
            });
            let mut answer = client.post(CHAT, &body).await;
            let ids: Vec<_> = rig.submitted().await.iter().map(|one| one.id).collect();
            let prompt = "<user>Hi<assistant>".len();
            rig.core
                .step(&[token(ids[0], "a").first(), token(ids[2], "x").first()]);
            rig.core
                .step(&[end(ids[2], FinishReason::Stop), token(ids[1], "m").first()]);
            rig.core
                .step(&[token(ids[0], "b"), end(ids[1], FinishReason::Length)]);
            rig.core
                .step(&[token(ids[0], "c"), end(ids[0], FinishReason::Stop)]);
            let mut chunks = chunks(&answer.events().await);
            let usage = chunks.pop().unwrap();
            assert_eq!(usage["choices"], json!([]));
            assert_eq!(usage["usage"]["prompt_tokens"], prompt);
            assert_eq!(usage["usage"]["completion_tokens"], 5);
            assert_eq!(usage["usage"]["prompt_tokens_details"]["cached_tokens"], 1);
            for (index, text, reason) in [(0, "abc", "stop"), (1, "m", "length"), (2, "x", "stop")]
            {
                let of = chunks.iter().map(|chunk| &chunk["choices"][0]);
                let of: Vec<_> = of.filter(|choice| choice["index"] == index).collect();
                let said = of.iter().map(|choice| choice["delta"]["content"].as_str());
                assert_eq!(said.flatten().collect::<String>(), text);
                let roles = of
                    .iter()
                    .filter(|choice| !choice["delta"]["role"].is_null());
                assert_eq!(roles.count(), 1);
                let ends = of
                    .iter()
                    .filter(|choice| !choice["finish_reason"].is_null());
                assert_eq!(
                    ends.map(|one| &one["finish_reason"]).collect::<Vec<_>>(),
                    [reason]
                );
            }
            rig.idle().await;
        });
    }
}

#[test]
fn a_whole_answer_has_its_choices_in_order() {
    on_one_thread(async {
        let mut rig = Rig::new(json!({})).await;
        let mut client = Client::new(rig.address, Version::Http1).await;
        let body = json!({"prompt": ["ab", "c"], "n": 2, "max_tokens": 4});
        let (answer, ()) = tokio::join!(client.post(COMPLETIONS, &body), async {
            let ids: Vec<_> = rig.submitted().await.iter().map(|one| one.id).collect();
            for (number, &id) in ids.iter().enumerate().rev() {
                rig.core.step(&[
                    token(id, &number.to_string()).first(),
                    end(id, FinishReason::Stop),
                ]);
            }
        });
        let answer = answer.json().await;
        let choices = answer["choices"].as_array().unwrap();
        let texts: Vec<_> = choices.iter().map(|choice| &choice["text"]).collect();
        assert_eq!(texts, ["0", "1", "2", "3"]);
        let indices: Vec<_> = choices.iter().map(|choice| &choice["index"]).collect();
        assert_eq!(indices, [0, 1, 2, 3]);
        let usage = &answer["usage"];
        assert_eq!(
            (&usage["prompt_tokens"], &usage["completion_tokens"]),
            (&json!(3), &json!(4))
        );
        rig.idle().await;
    });
}

#[test]
fn one_failure_ends_the_response_with_one_error() {
    for (stream, version) in [
        (true, Version::Http1),
        (true, Version::Http2),
        (false, Version::Http2),
    ] {
        on_one_thread(async {
            let mut rig = Rig::new(json!({})).await;
            let mut client = Client::new(rig.address, version).await;
            let body = json!({"prompt": "ab", "n": 3, "stream": stream});
            let answered = client.post(COMPLETIONS, &body);
            let (mut answer, ids) = tokio::join!(answered, async {
                let ids: Vec<_> = rig.submitted().await.iter().map(|one| one.id).collect();
                rig.core
                    .step(&[token(ids[0], "a"), end(ids[1], FinishReason::Error)]);
                ids
            });
            if stream {
                let chunks = chunks(&answer.events().await);
                let errors = chunks.iter().filter(|chunk| !chunk["error"].is_null());
                assert_eq!(errors.count(), 1);
                assert!(!chunks.last().unwrap()["error"].is_null());
            } else {
                assert_eq!(answer.status, 500);
            }
            let mut aborted = rig.core.aborted().await;
            aborted.extend(rig.core.aborted().await);
            assert_eq!(aborted, [ids[0], ids[2]]);
            rig.idle().await;
        });
    }
}

#[test]
fn leaving_aborts_every_choice() {
    for version in BOTH {
        on_one_thread(async {
            let mut rig = Rig::new(json!({})).await;
            let mut client = Client::new(rig.address, version).await;
            let body = json!({"prompt": "ab", "n": 2, "stream": true});
            let mut answer = client.post(COMPLETIONS, &body).await;
            let ids: Vec<_> = rig.submitted().await.iter().map(|one| one.id).collect();
            rig.core.step(&[token(ids[1], "x")]);
            assert_eq!(answer.text().await, "x");
            drop(answer);
            client.hang_up();
            let mut aborted = rig.core.aborted().await;
            aborted.extend(rig.core.aborted().await);
            assert_eq!(aborted, ids);
            rig.idle().await;
        });
    }
}

#[test]
fn permits_are_taken_for_all_choices_or_none() {
    on_one_thread(async {
        let mut rig = Rig::new(json!({"max_requests": 3})).await;
        let mut client = Client::new(rig.address, Version::Http2).await;
        let ask = |n: u32| json!({"prompt": "ab", "n": n, "stream": true});
        let open = client.post(COMPLETIONS, &ask(2)).await;
        assert_eq!(rig.submitted().await.len(), 2);
        let refused = client.post(COMPLETIONS, &ask(2)).await;
        assert_eq!(refused.status, 429);
        assert_eq!(rig.shard.gate.permits_taken(), 2);
        // More than there are at all would never be taken.
        let refused = client.post(COMPLETIONS, &ask(4)).await;
        assert_eq!(refused.status, 400);
        assert_eq!(refused.json().await["error"]["param"], "n");
        assert_eq!(client.post(COMPLETIONS, &ask(1)).await.status, 200);
        drop(open);
    });
}

#[test]
fn a_choice_that_ends_early_is_not_taken_for_a_stalled_one() {
    on_one_thread(async {
        let mut rig = Rig::new(json!({"stall_timeout_s": 0.2})).await;
        let mut client = Client::new(rig.address, Version::Http2).await;
        let body = json!({"prompt": "ab", "n": 2, "stream": true});
        let mut answer = client.post(COMPLETIONS, &body).await;
        let ids: Vec<_> = rig.submitted().await.iter().map(|one| one.id).collect();
        rig.core
            .step(&[token(ids[0], "x"), end(ids[0], FinishReason::Stop)]);
        assert_eq!(answer.text().await, "x");
        answer
            .event()
            .await
            .unwrap()
            .expect("the first choice's finish");
        // Long enough for the watch to have looked.
        let begun = std::time::Instant::now();
        until(|| begun.elapsed() > Duration::from_millis(600)).await;
        rig.core
            .step(&[token(ids[1], "y"), end(ids[1], FinishReason::Stop)]);
        assert_eq!(answer.text().await, "y");
        assert_eq!(answer.events().await.last().unwrap(), "[DONE]");
        rig.idle().await;
    });
}
