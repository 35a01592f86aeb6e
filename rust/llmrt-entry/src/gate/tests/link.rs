//! What a gate tells its keeper, and what not.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use llmrt_link::{Outbox, PeerState, SendError};
use llmrt_wire::Message;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, spawn_local};

use super::super::{Answers, Bounds, Gate};
use crate::tenants::{Rules, Tenant};
use crate::tests::{on_one_thread, until};

const BOUNDS: Bounds = Bounds {
    permits: 8,
    running: 8,
    queued_tokens: 0,
};

/// A link to a keeper that comes and goes as it is told, and never answers.
struct Line {
    state: watch::Sender<PeerState>,
    is_full: AtomicBool,
    sent: Mutex<Vec<Message>>,
}

impl Line {
    fn connecting() -> Arc<Self> {
        Arc::new(Self {
            state: watch::Sender::new(PeerState::Connecting),
            is_full: AtomicBool::new(false),
            sent: Mutex::default(),
        })
    }

    fn ready(&self) {
        self.state.send_replace(PeerState::Ready {
            incarnation: 1,
            info: "{}".into(),
        });
    }

    fn dead(&self) {
        let reason = "gone".into();
        self.state.send_replace(PeerState::Dead { reason });
    }

    /// All operations that have left, in order.
    fn told(&self) -> Vec<Value> {
        let sent = self.sent.lock().unwrap();
        let ops = sent.iter().flat_map(|message| match message {
            Message::Call(call) => serde_json::from_str::<Vec<Value>>(&call.arguments).unwrap(),
            other => panic!("a gate sends {other:?}"),
        });
        ops.collect()
    }
}

impl Outbox for Line {
    fn send(&self, message: &Message) -> Result<(), SendError> {
        if self.is_full.load(Ordering::Relaxed) {
            return Err(SendError::Full);
        }
        self.sent.lock().unwrap().push(message.clone());
        Ok(())
    }

    fn state(&self) -> watch::Receiver<PeerState> {
        self.state.subscribe()
    }

    fn is_greeting(&self) -> bool {
        false
    }

    fn incoming(&self) -> Option<mpsc::Receiver<Message>> {
        None
    }

    fn close(&self, _: &str) {}
}

fn gate_over(line: &Arc<Line>) -> (Rc<Gate>, JoinHandle<()>) {
    let gate = Gate::new(BOUNDS, Some(line.clone()));
    let asking = spawn_local(gate.clone().ask_keeper());
    (gate, asking)
}

#[test]
fn what_a_lost_keeper_was_to_be_told_is_not_told_its_successor() {
    on_one_thread(async {
        let line = Line::connecting();
        let (gate, asking) = gate_over(&line);
        line.ready();
        until(|| gate.asks_keeper()).await;
        line.is_full.store(true, Ordering::Relaxed);
        let tenant = Tenant::new(Rules::default());
        let mut admitted = Box::pin(gate.admit(&tenant, 1, true));
        assert!((&mut admitted).now_or_never().is_none());
        tokio::task::yield_now().await;
        line.dead();
        let permits = admitted.await.unwrap();
        line.ready();
        until(|| gate.asks_keeper()).await;
        line.is_full.store(false, Ordering::Relaxed);
        until(|| !line.told().is_empty()).await;
        drop(permits);
        until(|| line.told().iter().any(|op| op.get("close").is_some())).await;
        let told = line.told();
        assert_eq!(told[0]["hold"]["permits"], 1);
        assert!(
            told.iter().all(|op| op.get("admit").is_none()),
            "an old question reaches the successor: {told:?}"
        );
        asking.abort();
    });
}

#[test]
fn a_keeper_is_told_of_no_answers_whose_ends_it_would_not_hear_of() {
    on_one_thread(async {
        let line = Line::connecting();
        let (gate, asking) = gate_over(&line);
        let tenant = Tenant::new(Rules::default());
        let permits = gate.admit(&tenant, 1, true).await.unwrap();
        let turns = gate.queue(&permits, Answers::new(&[7], 0, None)).await;
        line.ready();
        until(|| !line.told().is_empty()).await;
        let held = &line.told()[0]["hold"];
        assert_eq!(held["permits"], 1);
        assert_eq!(held["answers"]["answers"], Value::Array(Vec::new()));
        drop(turns);
        asking.abort();
    });
}
