//! The loop over in-memory links.

mod common;

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{request, state};
use llmrt_link::memory::{self, MemoryInbox, Network};
use llmrt_link::{Event, Identity, Inbox, LinkOptions, LinkOutbox, Outbox, SendError, Welcome};
use llmrt_mock::{Faults, Links, serve};
use llmrt_wire::{Abort, Call, FinishReason, Message, Reply, RequestId, Submit, TokenFrame};
use tokio::task::JoinHandle;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(20);
const CREDIT: u32 = 4;

fn options() -> LinkOptions {
    LinkOptions {
        backoff: Duration::from_millis(20),
        ..LinkOptions::default()
    }
}

fn bind(network: &Network, name: &str, credit: u32) -> MemoryInbox {
    let welcome = Welcome {
        credit,
        ..Welcome::new()
    };
    MemoryInbox::bind(network, name, welcome, options()).expect("the name is free")
}

fn connect(network: &Network, name: &str, role: &str, window: usize) -> LinkOutbox {
    let options = LinkOptions {
        window,
        ..options()
    };
    memory::connect(network, name, Identity::new(role, 0), options)
}

/// An engine and everybody around it.
struct Stage {
    network: Network,
    tokens: MemoryInbox,
    entry: LinkOutbox,
    _control: MemoryInbox,
    engine: JoinHandle<()>,
}

impl Stage {
    /// `window` bounds the bytes of frames under way.
    async fn new(step: Duration, faults: &str, window: usize) -> Self {
        let network = Network::default();
        let control = bind(&network, "control", 0);
        let tokens = bind(&network, "tokens", 0);
        let inbox = bind(&network, "requests", CREDIT);
        let links = Links {
            tokens: vec![Arc::new(connect(&network, "tokens", "scheduler", window))],
            control: Arc::new(connect(&network, "control", "scheduler", 1 << 20)),
        };
        let faults: Faults = faults.parse().expect("valid faults");
        let engine = tokio::spawn(serve(state(), faults, step, inbox, links, pending()));
        let entry = connect(&network, "requests", "entry", 1 << 20);
        let mut known = entry.state();
        timeout(PATIENCE, known.wait_for(|state| state.is_ready()))
            .await
            .expect("no answer")
            .expect("the link ended");
        Self {
            network,
            tokens,
            entry,
            _control: control,
            engine,
        }
    }

    fn submit(&self, sequence: u64, max_tokens: u32) -> Result<(), SendError> {
        let mut asked = request(sequence, &[5]);
        asked.sampling.max_tokens = max_tokens;
        let submit = Submit {
            requests: vec![asked],
            ..Submit::default()
        };
        self.entry.send(&submit.into())
    }

    async fn frame(&mut self) -> TokenFrame {
        loop {
            let event = timeout(PATIENCE, self.tokens.recv()).await;
            if let Event::Message {
                message: Message::TokenFrame(frame),
                ..
            } = event.expect("no frame")
            {
                return frame;
            }
        }
    }

    /// Reads frames until a request has ended; returns all its tokens.
    async fn answer(&mut self, id: u64) -> (Vec<u32>, FinishReason) {
        let mut all = Vec::new();
        loop {
            let frame = self.frame().await;
            let mut tokens = frame.tokens.iter();
            for (row, (&of, &count)) in (0u32..).zip(frame.ids.iter().zip(frame.counts.iter())) {
                let own: Vec<u32> = tokens.by_ref().take(count as usize).copied().collect();
                if of == id {
                    all.extend(own);
                    if let Some(end) = frame.finished.iter().find(|end| end.row == row) {
                        return (all, end.outcome.reason);
                    }
                }
            }
        }
    }

    async fn call(&self, method: &str, arguments: &str) -> Reply {
        let call = Call {
            tag: Default::default(),
            call: 3,
            method: method.to_owned(),
            arguments: arguments.to_owned(),
        };
        let mut incoming = self.entry.incoming().expect("taken once a test");
        self.entry.send(&call.into()).expect("the engine is there");
        match timeout(PATIENCE, incoming.recv()).await {
            Ok(Some(Message::Reply(reply))) => reply,
            other => panic!("not a reply: {other:?}"),
        }
    }
}

const STEP: Duration = Duration::from_millis(2);

#[tokio::test]
async fn an_answer_comes_and_its_credit_returns() {
    let mut stage = Stage::new(STEP, "", 1 << 20).await;
    for sequence in 0..3 * u64::from(CREDIT) {
        // The credit of the one before arrives behind its last frame.
        timeout(PATIENCE, async {
            while stage.submit(sequence, 4) == Err(SendError::Full) {
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("credit never came back");
        assert_eq!(
            stage.answer(sequence).await,
            (vec![7, 8, 9, 7], FinishReason::Length)
        );
    }
}

#[tokio::test]
async fn steps_take_their_time() {
    let mut stage = Stage::new(Duration::from_millis(10), "", 1 << 20).await;
    stage.submit(1, 21).expect("there is credit");
    stage.frame().await;
    let began = Instant::now();
    stage.answer(1).await;
    // 20 further steps; a busy machine may only make it longer.
    assert!(
        began.elapsed() >= Duration::from_millis(180),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn an_abort_ends_with_one_row() {
    let mut stage = Stage::new(STEP, "", 1 << 20).await;
    stage.submit(1, 900).expect("there is credit");
    stage.frame().await;
    let abort = Abort {
        ids: vec![RequestId(1)],
        ..Abort::default()
    };
    stage
        .entry
        .send(&abort.into())
        .expect("the engine is there");
    let (tokens, reason) = stage.answer(1).await;
    assert_eq!(reason, FinishReason::Abort);
    assert!(tokens.len() < 900);
    let stats = stage.call("stats", "{}").await;
    assert!(
        stats.value.contains(r#""requests_abort_total":1"#),
        "{}",
        stats.value
    );
}

#[tokio::test]
async fn without_step_time_a_reader_that_waits_holds_the_engine_up() {
    // Room for a handful of frames: each counts about a kilobyte.
    let mut stage = Stage::new(Duration::ZERO, "", 8 << 10).await;
    stage.submit(1, 900).expect("there is credit");
    let mut read = stage.frame().await.tokens.len();
    let mut made = 0;
    timeout(PATIENCE, async {
        loop {
            let reply = stage_stats(&stage).await;
            if made > 0 && reply == made {
                return;
            }
            made = reply;
        }
    })
    .await
    .expect("the engine never paused");
    assert!(made < 40, "{made} frames are under way");
    let (tokens, reason) = stage.answer(1).await;
    read += tokens.len();
    assert_eq!((read, reason), (900, FinishReason::Length));
}

/// Tokens that were generated so far, read over a link of its own.
async fn stage_stats(stage: &Stage) -> u64 {
    let asker = connect(&stage.network, "requests", "supervisor", 1 << 20);
    let mut known = asker.state();
    known
        .wait_for(|state| state.is_ready())
        .await
        .expect("the link ended");
    // Several turns of the engine pass between two questions.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let mut incoming = asker.incoming().expect("taken once");
    let call = Call {
        tag: Default::default(),
        call: 1,
        method: "stats".to_owned(),
        arguments: "{}".to_owned(),
    };
    asker.send(&call.into()).expect("the engine is there");
    match incoming.recv().await {
        Some(Message::Reply(reply)) => {
            let stats: serde_json::Value = serde_json::from_str(&reply.value).expect("JSON");
            stats["generation_tokens_total"].as_u64().expect("a count")
        }
        other => panic!("not a reply: {other:?}"),
    }
}

#[tokio::test]
async fn a_successor_of_the_detokenizer_is_served() {
    let mut stage = Stage::new(STEP, "", 1 << 20).await;
    stage.submit(1, 900).expect("there is credit");
    stage.frame().await;
    let gone = std::mem::replace(&mut stage.tokens, {
        let spare = Network::default();
        bind(&spare, "tokens", 0)
    });
    gone.close("the test says so").await;
    stage.tokens = bind(&stage.network, "tokens", 0);
    // It is told how the request ended whose text got lost.
    assert_eq!(stage.answer(1).await, (vec![], FinishReason::Error));
    stage.submit(2, 3).expect("there is credit");
    assert_eq!(stage.answer(2).await.0, [7, 8, 9]);
    let stats = stage.call("stats", "{}").await;
    assert!(
        stats.value.contains(r#""requests_error_total":1"#),
        "{}",
        stats.value
    );
}

#[tokio::test]
async fn a_slow_fault_slows_and_garbage_hurts_nobody() {
    let mut stage = Stage::new(STEP, "garbage@2,slow:30@4", 1 << 20).await;
    stage.submit(1, 9).expect("there is credit");
    let began = Instant::now();
    let (tokens, _) = stage.answer(1).await;
    assert_eq!(tokens, [7, 8, 9, 7, 8, 9, 7, 8, 9]);
    assert!(
        began.elapsed() >= Duration::from_millis(100),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn faults_are_taken_by_call_and_bad_ones_refused() {
    let mut stage = Stage::new(STEP, "", 1 << 20).await;
    let reply = stage.call("fault", r#"{"fault": "stall:0.2"}"#).await;
    assert!(reply.ok, "{}", reply.value);
    let began = Instant::now();
    stage.submit(1, 1).expect("there is credit");
    stage.answer(1).await;
    assert!(began.elapsed() >= Duration::from_millis(190));
}

#[tokio::test]
async fn calls_that_make_no_sense_are_refused() {
    for (method, arguments) in [
        ("fault", r#"{"fault": "burn"}"#),
        ("fault", "[]"),
        ("fly", "{}"),
    ] {
        let stage = Stage::new(STEP, "", 1 << 20).await;
        let reply = stage.call(method, arguments).await;
        assert!(!reply.ok && !reply.value.is_empty());
    }
}

#[tokio::test]
async fn the_end_is_said_on_every_link() {
    let stage = Stage::new(STEP, "", 1 << 20).await;
    assert!(!stage.engine.is_finished());
    let mut known = stage.entry.state();
    stage.engine.abort();
    timeout(PATIENCE, known.wait_for(|state| !state.is_ready()))
        .await
        .expect("no word of its end")
        .expect("the link ended");
}
