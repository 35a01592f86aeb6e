//! Probes of a server's health, and comments on silent streams.

use std::time::{Duration, Instant};

use llmrt_wire::FinishReason;
use serde_json::json;

use super::client::{BOTH, COMPLETIONS, Client, Version};
use super::on_one_thread;
use super::rig::{Rig, end, token};

const PROBE: &str = "/health_generate";

#[test]
fn a_probe_takes_one_token_from_the_core() {
    for version in BOTH {
        on_one_thread(async {
            let mut rig = Rig::new(json!({})).await;
            let mut client = Client::new(rig.address, version).await;
            let (answer, ()) = tokio::join!(client.get(PROBE), async {
                let request = rig.core.request().await;
                assert_eq!(request.sampling.max_tokens, 1);
                rig.core.step(&[
                    token(request.id, "a"),
                    end(request.id, FinishReason::Length),
                ]);
            });
            assert_eq!(answer.status, 200);
            assert_eq!(answer.json().await["status"], "ok");
            rig.idle().await;
        });
    }
}

#[test]
fn a_probe_without_a_token_is_503_and_leaves_nothing() {
    on_one_thread(async {
        let mut rig = Rig::new(json!({"health_timeout_s": 0.05})).await;
        let mut client = Client::new(rig.address, Version::Http1).await;
        let (answer, id) = tokio::join!(client.get(PROBE), rig.core.request());
        assert_eq!(answer.status, 503);
        assert!(answer.headers.contains_key("retry-after"));
        assert_eq!(rig.core.aborted().await, [id.id]);
        rig.idle().await;
        let (answer, ()) = tokio::join!(client.get(PROBE), async {
            let id = rig.core.request().await.id;
            rig.core.step(&[end(id, FinishReason::Error)]);
        });
        assert_eq!(answer.status, 503);
        let (answer, ()) = tokio::join!(client.get(PROBE), async {
            let id = rig.core.request().await.id;
            rig.core.step(&[end(id, FinishReason::Stop)]);
        });
        assert_eq!(answer.status, 503);
        rig.core.die().await;
        assert_eq!(client.get(PROBE).await.status, 503);
    });
}

#[test]
fn probes_are_bounded() {
    on_one_thread(async {
        let mut rig = Rig::new(json!({})).await;
        let mut waiting = Vec::new();
        for _ in 0..4 {
            let mut client = Client::new(rig.address, Version::Http1).await;
            waiting.push(tokio::task::spawn_local(async move {
                client.get(PROBE).await.status
            }));
            rig.core.request().await;
        }
        let mut client = Client::new(rig.address, Version::Http1).await;
        assert_eq!(client.get(PROBE).await.status, 429);
        waiting.into_iter().for_each(|probe| probe.abort());
        for _ in 0..4 {
            rig.core.aborted().await;
        }
        rig.idle().await;
    });
}

#[test]
fn silent_streams_get_comments() {
    const INTERVAL: Duration = Duration::from_millis(200);
    for version in BOTH {
        on_one_thread(async {
            let interval = INTERVAL.as_secs_f64();
            let mut rig = Rig::new(json!({"ping_interval_s": interval})).await;
            let mut client = Client::new(rig.address, version).await;
            let streamed = json!({"prompt": [1], "stream": true});
            let mut answer = client.post(COMPLETIONS, &streamed).await;
            let id = rig.core.request().await.id;
            let began = Instant::now();
            let (text, ()) = tokio::join!(answer.text(), async {
                tokio::time::sleep(5 * INTERVAL).await;
                rig.core.step(&[token(id, "a")]);
            });
            assert_eq!(text, "a");
            // One each interval at least, and none before three quarters of it are over.
            let most = began.elapsed().as_secs_f64() / (0.75 * interval);
            let comments = answer.comments;
            assert!(comments >= 1 && comments as f64 <= most, "{comments}");
            rig.core
                .step(&[token(id, "b"), end(id, FinishReason::Stop)]);
            assert_eq!(answer.events().await.len(), 3);
            rig.idle().await;
        });
    }
}
