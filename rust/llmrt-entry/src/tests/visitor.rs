//! Others than the core on the results link: they may look, and change nothing.

use llmrt_link::memory;
use llmrt_link::{Identity, Outbox};
use llmrt_wire::{Call, FinishReason, Message, Reply, TextFrame};
use serde_json::json;

use super::client::{COMPLETIONS, Client, Version};
use super::rig::{Rig, end, options, token};
use super::{on_one_thread, until};
use crate::core::CoreState;

fn call(method: &str) -> Message {
    let call = Call {
        tag: Default::default(),
        call: 9,
        method: method.to_owned(),
        arguments: String::new(),
    };
    call.into()
}

#[test]
fn a_visitor_is_answered_and_changes_nothing() {
    on_one_thread(async {
        let mut rig = Rig::new(json!({})).await;
        let mut client = Client::new(rig.address, Version::Http1).await;
        let request = json!({"prompt": [1], "stream": true});
        let mut answer = client.post(COMPLETIONS, &request).await;
        let id = rig.core.request().await.id;

        let who = Identity::new("doctor", 0);
        let visitor = memory::connect(&rig.network, "results", who, options());
        let mut replies = visitor.incoming().unwrap();
        until(|| visitor.state().borrow().is_ready()).await;
        let forged = TextFrame {
            ids: vec![id.0].into(),
            counts: vec![1].into(),
            ends: vec![1].into(),
            text: "x".to_owned(),
            ..TextFrame::default()
        };
        visitor.send(&forged.into()).unwrap();
        visitor.send(&call("stats")).unwrap();
        visitor.send(&call("shutdown")).unwrap();
        let mut reply = async || match replies.recv().await {
            Some(Message::Reply(Reply { ok, value, .. })) => (ok, value),
            other => panic!("{other:?} where a reply was expected"),
        };
        let (ok, stats) = reply().await;
        let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
        assert!(ok);
        // The forged frame counts as none.
        let expected = json!({
            "core": "up",
            "open_requests": 1,
            "permits": 1,
            "open_connections": 1,
            "queued_prompts": 0,
            "queued_tokens": 1,
            "waiting_turns": 0,
            "seconds_since_last_frame": null,
        });
        assert_eq!(stats, expected);
        assert!(!reply().await.0);
        visitor.close("has seen enough");

        rig.core
            .step(&[token(id, "a"), end(id, FinishReason::Stop)]);
        assert_eq!(answer.text().await, "a");
        assert_eq!(rig.shard.core.state(), CoreState::Up);
        assert!(rig.shard.stats()["seconds_since_last_frame"].is_f64());
        rig.idle().await;
    });
}
