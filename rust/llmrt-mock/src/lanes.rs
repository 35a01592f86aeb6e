//! Token frames on their way to the detokenizers.

use std::collections::VecDeque;
use std::sync::Arc;

use llmrt_link::{Outbox, PeerState, SendError};
use llmrt_wire::{Message, TokenFrame};
use tokio::sync::mpsc;

/// What became of the link to a detokenizer.
pub(crate) struct Change {
    lane: usize,
    /// The detokenizer that listens now.
    incarnation: Option<u64>,
}

struct Lane {
    outbox: Arc<dyn Outbox>,
    incarnation: Option<u64>,
}

/// The links to all detokenizers, and frames that they have no room for yet.
pub(crate) struct Lanes {
    lanes: Vec<Lane>,
    unsent: VecDeque<(usize, Message)>,
    changes: mpsc::Receiver<Change>,
}

impl Lanes {
    pub(crate) fn new(outboxes: Vec<Arc<dyn Outbox>>) -> Self {
        let (sender, changes) = mpsc::channel(outboxes.len().max(1));
        for (lane, outbox) in outboxes.iter().enumerate() {
            tokio::spawn(watch(lane, outbox.clone(), sender.clone()));
        }
        let lane = |outbox| Lane {
            outbox,
            incarnation: None,
        };
        Self {
            lanes: outboxes.into_iter().map(lane).collect(),
            unsent: VecDeque::new(),
            changes,
        }
    }

    /// The next change of a link. Cancel-safe.
    pub(crate) async fn change(&mut self) -> Option<Change> {
        self.changes.recv().await
    }

    /// Takes a change over; returns the number of a detokenizer that was lost with it.
    pub(crate) fn apply(&mut self, change: Change) -> Option<usize> {
        let Change { lane, incarnation } = change;
        let before = std::mem::replace(&mut self.lanes[lane].incarnation, incarnation);
        let lost = before.is_some() && before != incarnation;
        if lost {
            self.unsent.retain(|(to, _)| *to != lane);
        }
        lost.then_some(lane)
    }

    /// Whether every detokenizer listens: a step without one of them would not be heard.
    pub(crate) fn ready(&self) -> bool {
        self.lanes.iter().all(|lane| lane.incarnation.is_some())
    }

    /// Whether frames wait for room.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.unsent.is_empty()
    }

    pub(crate) fn send(&mut self, frames: Vec<(usize, TokenFrame)>) {
        let messages = frames.into_iter().map(|(lane, frame)| (lane, frame.into()));
        self.unsent.extend(messages);
        self.flush();
    }

    /// Sends what there is room for, in order.
    pub(crate) fn flush(&mut self) {
        while let Some((lane, message)) = self.unsent.front() {
            if self.lanes[*lane].outbox.send(message).is_err() {
                return;
            }
            self.unsent.pop_front();
        }
    }

    /// Sends a frame past all order.
    pub(crate) fn inject(&self, lane: usize, frame: TokenFrame) -> Result<(), SendError> {
        self.lanes[lane].outbox.send(&frame.into())
    }

    pub(crate) fn close(&self, reason: &str) {
        for lane in &self.lanes {
            lane.outbox.close(reason);
        }
    }
}

async fn watch(lane: usize, outbox: Arc<dyn Outbox>, changes: mpsc::Sender<Change>) {
    let mut state = outbox.state();
    drop(outbox);
    loop {
        let incarnation = match &*state.borrow_and_update() {
            PeerState::Ready { incarnation, .. } => Some(*incarnation),
            _ => None,
        };
        let change = Change { lane, incarnation };
        if changes.send(change).await.is_err() || state.changed().await.is_err() {
            return;
        }
    }
}
