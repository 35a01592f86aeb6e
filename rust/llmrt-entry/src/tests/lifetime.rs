//! Clients that leave, readers that stall, cores that die, workers that end.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use llmrt_link::memory::{self, MemoryInbox, Network};
use llmrt_link::{Identity, PeerState, Welcome};
use llmrt_wire::FinishReason;
use serde_json::json;
use tokio::task::spawn_local;

use super::client::{BOTH, COMPLETIONS, Client, Version};
use super::rig::{Core, Rig, end, options, token};
use super::{on_one_thread, until};
use crate::core::{self, CoreState};
use crate::shard::{Command, CoreDown};

fn streamed(prompt: u32) -> serde_json::Value {
    json!({"prompt": [prompt], "stream": true})
}

#[test]
fn leaving_aborts_the_request() {
    for version in BOTH {
        on_one_thread(async {
            let mut rig = Rig::new(json!({})).await;
            let mut client = Client::new(rig.address, version).await;
            let mut answer = client.post(COMPLETIONS, &streamed(1)).await;
            let id = rig.core.request().await.id;
            rig.core.step(&[token(id, "a")]);
            assert_eq!(answer.text().await, "a");
            drop(answer);
            client.hang_up();
            assert_eq!(rig.core.aborted().await, [id]);
            rig.idle().await;
            // Its late rows hurt nobody.
            rig.core
                .step(&[token(id, "late"), end(id, FinishReason::Abort)]);
            let mut other = Client::new(rig.address, version).await;
            let mut answer = other.post(COMPLETIONS, &streamed(2)).await;
            let id = rig.core.request().await.id;
            rig.core.step(&[token(id, "b")]);
            assert_eq!(answer.text().await, "b");
        });
    }
}

#[test]
fn leaving_before_a_whole_answer_aborts_too() {
    for version in BOTH {
        on_one_thread(async {
            let mut rig = Rig::new(json!({})).await;
            let mut client = Client::new(rig.address, version).await;
            let asked = tokio::task::spawn_local(async move {
                client.post(COMPLETIONS, &json!({"prompt": [1]})).await;
            });
            let id = rig.core.request().await.id;
            asked.abort();
            assert_eq!(rig.core.aborted().await, [id]);
            rig.idle().await;
        });
    }
}

#[test]
fn a_reset_stream_leaves_its_siblings_alone() {
    on_one_thread(async {
        let mut rig = Rig::new(json!({})).await;
        let mut client = Client::new(rig.address, Version::Http2).await;
        let leaver = client.post(COMPLETIONS, &streamed(1)).await;
        let left = rig.core.request().await.id;
        let mut stayer = client.post(COMPLETIONS, &streamed(2)).await;
        let stayed = rig.core.request().await.id;
        drop(leaver);
        assert_eq!(rig.core.aborted().await, [left]);
        rig.core
            .step(&[token(stayed, "still here"), end(stayed, FinishReason::Stop)]);
        assert_eq!(stayer.text().await, "still here");
        assert_eq!(stayer.events().await[1..], ["[DONE]"]);
        rig.idle().await;
    });
}

#[test]
fn a_stalled_reader_loses_its_request_and_no_other() {
    on_one_thread(async {
        let mut rig =
            Rig::new(json!({"response_buffer_bytes": 2048, "stall_timeout_s": 0.1})).await;
        let mut client = Client::with_window(rig.address, Version::Http2, 1024).await;
        let mut slow = client.post(COMPLETIONS, &streamed(1)).await;
        let stalled = rig.core.request().await.id;
        let mut brisk = client.post(COMPLETIONS, &streamed(2)).await;
        let read = rig.core.request().await.id;
        // More than the window and the buffer hold, less than what ends a request at once.
        for _ in 0..5 {
            rig.core
                .step(&[token(stalled, &"x".repeat(1400)), token(read, "y")]);
            assert_eq!(brisk.text().await, "y");
        }
        assert_eq!(rig.core.aborted().await, [stalled]);
        rig.core
            .step(&[token(read, "z"), end(read, FinishReason::Stop)]);
        assert_eq!(brisk.text().await, "z");
        drop(brisk);
        // What was sent before the cut may still be read; then the stream breaks off.
        while let Ok(event) = slow.event().await {
            assert!(event.is_some(), "a cut stream looks like a whole one");
        }
        rig.idle().await;
    });
}

#[test]
fn a_flood_into_a_full_buffer_ends_the_request_at_once() {
    for version in BOTH {
        on_one_thread(async {
            let mut rig =
                Rig::new(json!({"response_buffer_bytes": 65536, "stall_timeout_s": 600})).await;
            // A reader that never reads: the head alone was taken.
            let mut client = Client::with_window(rig.address, version, 1024).await;
            let slow = client.post(COMPLETIONS, &streamed(1)).await;
            let id = rig.core.request().await.id;
            let flood = async {
                loop {
                    rig.core.step(&[token(id, &"x".repeat(60_000))]);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    if rig.shard.router.open_requests() == 0 {
                        break;
                    }
                }
            };
            flood.await;
            assert_eq!(rig.core.aborted().await, [id]);
            rig.idle().await;
            drop(slow);
        });
    }
}

#[test]
fn a_dead_core_ends_streams_with_an_error_and_a_new_one_takes_over() {
    for version in BOTH {
        on_one_thread(async {
            let mut rig = Rig::new(json!({})).await;
            let mut client = Client::new(rig.address, version).await;
            let mut answer = client.post(COMPLETIONS, &streamed(1)).await;
            let id = rig.core.request().await.id;
            rig.core.step(&[token(id, "a")]);
            assert_eq!(answer.text().await, "a");
            rig.core.die().await;
            let events = answer.events().await;
            assert!(events[0].contains(r#""error":{"#), "{events:?}");
            assert_eq!(events[1..], ["[DONE]"]);
            rig.idle().await;
            for path in ["/health", "/ready"] {
                assert_eq!(client.get(path).await.status, 503);
            }
            let refused = client.post(COMPLETIONS, &streamed(1)).await;
            assert_eq!(refused.status, 503);
            assert_eq!(refused.headers["retry-after"], "1");
            rig.core = Core::start(&rig.network);
            until(|| rig.shard.check_open().is_ok()).await;
            assert_eq!(client.get("/ready").await.status, 200);
            client.post(COMPLETIONS, &streamed(1)).await;
            rig.core.request().await;
        });
    }
}

#[test]
fn a_dead_detokenizer_ends_its_own_requests_alone() {
    for version in BOTH {
        on_one_thread(async {
            let mut rig = Rig::with(|config| config["detokenizers"] = 2.into()).await;
            let mut answers = Vec::new();
            for prompt in [1, 2] {
                let mut client = Client::new(rig.address, version).await;
                let mut answer = client.post(COMPLETIONS, &streamed(prompt)).await;
                let id = rig.core.request().await.id;
                rig.core.step(&[token(id, "a")]);
                assert_eq!(answer.text().await, "a");
                answers.push((id, client, answer));
            }
            // Ids follow each other, so each detokenizer has one.
            answers.sort_by_key(|(id, ..)| id.detokenizer(2));
            let (lost, mut client, mut answer) = answers.pop().unwrap();
            assert_eq!(lost.detokenizer(2), 1);
            rig.core.end_detokenizer(1);
            let events = answer.events().await;
            assert!(events[0].contains(r#""error":{"#), "{events:?}");
            assert_eq!(events[1..], ["[DONE]"]);
            assert_eq!(rig.core.aborted().await, [lost]);
            assert_eq!(client.get("/health").await.status, 503);
            let refused = client.post(COMPLETIONS, &streamed(3)).await;
            assert_eq!(refused.status, 503);
            rig.core.replace_detokenizer(&rig.network, 1);
            until(|| rig.shard.check_open().is_ok()).await;
            let (id, _client, mut answer) = answers.pop().unwrap();
            rig.core
                .step(&[token(id, "b"), end(id, FinishReason::Stop)]);
            assert_eq!(answer.text().await, "b");
            assert_eq!(answer.events().await[1..], ["[DONE]"]);
            rig.idle().await;
        });
    }
}

/// The scheduler that the entry is connected to.
fn present(rig: &Rig) -> u64 {
    match *rig.shard.core.watch_scheduler().borrow() {
        PeerState::Ready { incarnation, .. } => incarnation,
        ref other => panic!("{other:?}"),
    }
}

fn tell_dead(rig: &Rig, scheduler: u64, back_in: Duration) {
    rig.commands
        .send(Command::CoreDown(CoreDown {
            reason: "exit code 9".to_owned(),
            scheduler: Some(scheduler),
            back_in: Some(back_in),
        }))
        .unwrap();
}

#[test]
fn a_core_that_is_told_dead_answers_nothing_any_more() {
    on_one_thread(async {
        let mut rig = Rig::new(json!({})).await;
        let mut client = Client::new(rig.address, Version::Http2).await;
        let body = json!({"prompt": [1]});
        let (answer, ()) = tokio::join!(client.post(COMPLETIONS, &body), async {
            rig.core.request().await;
            tell_dead(&rig, present(&rig), Duration::from_secs(60));
        });
        assert_eq!(answer.status, 503);
        assert!(!String::from_utf8_lossy(&answer.bytes().await).contains("exit code"));
        assert_eq!(
            rig.shard.core.state(),
            CoreState::Down {
                reason: "exit code 9".into()
            }
        );
        for refused in [
            client.get("/health").await,
            client.post(COMPLETIONS, &body).await,
        ] {
            assert_eq!(refused.status, 503);
            assert_eq!(refused.headers["retry-after"], "60");
        }
        rig.core.die().await;
        rig.core = Core::start(&rig.network);
        until(|| rig.shard.check_open().is_ok()).await;
    });
}

#[test]
fn old_news_of_a_death_does_not_hurt_the_successor() {
    on_one_thread(async {
        let mut rig = Rig::new(json!({})).await;
        let mut client = Client::new(rig.address, Version::Http2).await;
        let mut answer = client.post(COMPLETIONS, &streamed(1)).await;
        let id = rig.core.request().await.id;
        tell_dead(&rig, present(&rig).wrapping_add(1), Duration::from_secs(60));
        // Commands are obeyed in order.
        assert_eq!(client.get("/health").await.status, 200);
        rig.core
            .step(&[token(id, "a"), end(id, FinishReason::Stop)]);
        assert_eq!(answer.text().await, "a");
        assert_eq!(answer.events().await[1..], ["[DONE]"]);
    });
}

#[test]
fn shutting_down_lets_open_requests_end() {
    for version in BOTH {
        on_one_thread(async {
            let mut rig = Rig::new(json!({})).await;
            let mut client = Client::new(rig.address, version).await;
            let mut answer = client.post(COMPLETIONS, &streamed(1)).await;
            let id = rig.core.request().await.id;
            rig.commands
                .send(Command::Shutdown {
                    timeout: Duration::from_secs(60),
                })
                .unwrap();
            until(|| rig.shard.draining()).await;
            rig.core
                .step(&[token(id, "last words"), end(id, FinishReason::Stop)]);
            assert_eq!(answer.text().await, "last words");
            assert_eq!(answer.events().await[1..], ["[DONE]"]);
            rig.served.await.unwrap();
            tokio::net::TcpStream::connect(rig.address)
                .await
                .unwrap_err();
        });
    }
}

#[test]
fn shutting_down_tells_requests_that_cannot_end() {
    for version in BOTH {
        on_one_thread(async {
            let mut rig = Rig::new(json!({})).await;
            let mut client = Client::new(rig.address, version).await;
            let mut answer = client.post(COMPLETIONS, &streamed(1)).await;
            let id = rig.core.request().await.id;
            rig.commands
                .send(Command::Shutdown {
                    timeout: Duration::from_secs(600),
                })
                .unwrap();
            until(|| rig.shard.draining()).await;
            // A second request to shut down shortens the first.
            rig.commands
                .send(Command::Shutdown {
                    timeout: Duration::from_millis(1),
                })
                .unwrap();
            let events = answer.events().await;
            assert!(events[0].contains(r#""error":{"#), "{events:?}");
            assert_eq!(events[1..], ["[DONE]"]);
            assert_eq!(rig.core.aborted().await, [id]);
            rig.served.await.unwrap();
        });
    }
}

#[test]
fn whoever_hears_late_of_the_core_waits_a_moment() {
    on_one_thread(async {
        let network = Network::default();
        let identity = Identity::new("entry", 1);
        let outbox = memory::connect(&network, "requests", identity, options());
        let core = Rc::new(core::Core::new(Arc::new(outbox), 1));
        core.settle().await;
        assert_eq!(core.state(), CoreState::Starting);
        let settling = spawn_local({
            let core = core.clone();
            async move { core.settle().await }
        });
        let _results = MemoryInbox::bind(&network, "results", Welcome::new(), options()).unwrap();
        let _behind = Core::start(&network);
        let mut scheduler = core.watch_scheduler();
        scheduler.wait_for(PeerState::is_ready).await.unwrap();
        core.detokenizer_joined(0);
        settling.await.unwrap();
        assert_eq!(core.state(), CoreState::Up);
    });
}
