//! Routes, errors, ids and figures.

use http::Method;
use llmrt_wire::Message;
use serde_json::json;

use super::client::{BOTH, COMPLETIONS, Client, Version};
use super::on_one_thread;
use super::rig::Rig;

const JSON: (&str, &str) = ("content-type", "application/json");

#[test]
fn small_routes_answer() {
    for version in BOTH {
        on_one_thread(async {
            let rig = Rig::new(json!({})).await;
            let mut client = Client::new(rig.address, version).await;
            for path in [
                "/health",
                "/ready",
                "/version",
                "/v1/models",
                "/v1/models/m",
                "/v1/models/org%2Falias",
            ] {
                let answer = client.get(path).await;
                assert_eq!(answer.status, 200, "{path}");
                assert_eq!(answer.headers["content-type"], "application/json");
                answer.json().await;
            }
            let head = client.request(Method::HEAD, "/health", &[], b"").await;
            assert_eq!(head.status, 200);
            assert!(head.bytes().await.is_empty());
        });
    }
}

#[test]
fn refusals_have_the_openai_body_and_an_id() {
    for version in BOTH {
        on_one_thread(async {
            let rig = Rig::new(json!({})).await;
            let mut client = Client::new(rig.address, version).await;
            let text = ("content-type", "text/plain");
            let good: &[u8] = br#"{"prompt": [1]}"#;
            for (method, path, header, body, status) in [
                (Method::GET, "/nothing", JSON, good, 404),
                (Method::GET, "/v1/models/other", JSON, good, 404),
                (Method::GET, COMPLETIONS, JSON, good, 405),
                (Method::DELETE, "/metrics", JSON, good, 405),
                (Method::POST, COMPLETIONS, text, good, 400),
                (Method::POST, COMPLETIONS, JSON, b"{", 400),
                (
                    Method::POST,
                    COMPLETIONS,
                    JSON,
                    br#"{"prompt": [1], "temperature": 9}"#,
                    400,
                ),
                (
                    Method::POST,
                    COMPLETIONS,
                    JSON,
                    br#"{"prompt": [1], "model": "other"}"#,
                    404,
                ),
                (
                    Method::POST,
                    "/v1/chat/completions",
                    JSON,
                    br#"{"messages": []}"#,
                    400,
                ),
                (Method::POST, "/tokenize", JSON, b"{}", 400),
                (
                    Method::POST,
                    "/detokenize",
                    JSON,
                    br#"{"tokens": [256]}"#,
                    400,
                ),
            ] {
                let answer = client.request(method.clone(), path, &[header], body).await;
                assert_eq!(answer.status, status, "{method} {path}");
                assert!(
                    answer.headers["x-request-id"]
                        .to_str()
                        .unwrap()
                        .starts_with("req-")
                );
                assert_eq!(answer.headers.contains_key("allow"), status == 405);
                let error = &answer.json().await["error"];
                assert_eq!(error.as_object().unwrap().len(), 4, "{error}");
            }
            assert_eq!(rig.shard.gate.permits_taken(), 0);
        });
    }
}

#[test]
fn a_prompt_without_room_is_400() {
    on_one_thread(async {
        let rig = Rig::new(json!({})).await;
        let mut client = Client::new(rig.address, Version::Http1).await;
        let answer = client
            .post(COMPLETIONS, &json!({"prompt": "x".repeat(64)}))
            .await;
        assert_eq!(answer.status, 400);
        assert_eq!(
            answer.json().await["error"]["code"],
            "context_length_exceeded"
        );
        assert_eq!(rig.shard.gate.permits_taken(), 0);
    });
}

#[test]
fn texts_become_tokens_and_texts_again() {
    on_one_thread(async {
        let rig = Rig::new(json!({})).await;
        let mut client = Client::new(rig.address, Version::Http2).await;
        let tokens = client
            .post("/tokenize", &json!({"prompt": "Hé 1"}))
            .await
            .json()
            .await;
        assert_eq!(tokens["tokens"], json!("Hé 1".as_bytes()));
        assert_eq!(
            (&tokens["count"], &tokens["max_model_len"]),
            (&json!(5), &json!(64))
        );
        let text = client
            .post("/detokenize", &json!({"tokens": tokens["tokens"]}))
            .await
            .json()
            .await;
        assert_eq!(text["prompt"], "Hé 1");
        let chat = json!({"messages": [{"role": "user", "content": "Hi"}]});
        let chat = client.post("/tokenize", &chat).await.json().await;
        assert_eq!(chat["tokens"], json!("<user>Hi<assistant>".as_bytes()));
        let ask = json!({"prompt": "Hé 1", "truncate_prompt_tokens": 2, "return_token_strs": true});
        let cut = client.post("/tokenize", &ask).await.json().await;
        // The space as GPT-2's alphabet spells it.
        assert_eq!(
            (&cut["count"], &cut["token_strs"]),
            (&json!(2), &json!(["\u{120}", "1"]))
        );
    });
}

#[test]
fn metrics_hold_the_schedulers_counts() {
    on_one_thread(async {
        let mut rig = Rig::new(json!({})).await;
        let mut client = Client::new(rig.address, Version::Http1).await;
        let shard = rig.shard.clone();
        let answer = tokio::select! {
            answer = client.get("/metrics") => answer,
            () = rig.core.answer_calls() => unreachable!(),
        };
        assert!(
            answer.headers["content-type"]
                .to_str()
                .unwrap()
                .starts_with("application/openmetrics-text")
        );
        let text = String::from_utf8(answer.bytes().await.to_vec()).unwrap();
        for line in [
            r#"llmrt_num_requests_running{model_name="m"} 3"#,
            r#"llmrt_kv_cache_usage_perc{model_name="m"} 0.5"#,
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
        // A scheduler that does not answer leaves the last counts.
        assert_eq!(shard.core.stats().await.num_requests_running, 3);
    });
}

#[test]
fn a_scheduler_that_hangs_delays_all_who_ask_once_and_leaves_nothing_behind() {
    on_one_thread(async {
        let mut rig = Rig::new(json!({})).await;
        let core = &rig.shard.core;
        tokio::select! {
            _ = core.stats() => unreachable!("nobody has answered"),
            message = rig.core.next() => assert!(matches!(message, Message::Call(_))),
        }
        assert_eq!(core.calls(), 0, "a caller that left still waits");
        let asked = std::time::Instant::now();
        futures_util::future::join_all((0..8).map(|_| core.stats())).await;
        // The call that the first one makes, and the one that all others share.
        assert!(asked.elapsed().as_millis() < 3000, "{:?}", asked.elapsed());
        assert_eq!(core.calls(), 0);
    });
}

#[test]
fn a_401_says_which_scheme_it_takes() {
    for version in BOTH {
        on_one_thread(async {
            let rig = Rig::with(|config| config["api_keys"] = json!(["key"])).await;
            let mut client = Client::new(rig.address, version).await;
            let answer = client.get("/v1/models").await;
            assert_eq!(answer.status, 401);
            assert_eq!(answer.headers["www-authenticate"], "Bearer");
        });
    }
}
