//! Text frames on their way to the entry workers.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use llmrt_link::{Outbox, SendError};
use llmrt_wire::{RequestId, TextFrame};
use tokio::time::Instant;

use crate::state::State;

/// Frames that are kept for one worker that cannot be reached.
const MAX_OWED: usize = 64;
/// How long they are kept: a worker that is gone for longer has told its clients itself.
const KEEP_OWED: Duration = Duration::from_secs(60);

/// The entry workers' outboxes, and what they could not take.
///
/// A frame that a worker does not take is not followed by later ones as if nothing had happened: the worker's open
/// requests end with an error, which is kept for it.
pub struct Delivery {
    outboxes: Vec<Arc<dyn Outbox>>,
    owed: HashMap<u16, Owed>,
}

struct Owed {
    since: Instant,
    frames: VecDeque<TextFrame>,
}

impl Delivery {
    pub fn new(outboxes: Vec<Arc<dyn Outbox>>) -> Self {
        Self {
            outboxes,
            owed: HashMap::new(),
        }
    }

    /// Whether frames wait for a worker to come back.
    pub fn owes(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Sends each frame to its worker. Returns the requests that ended because their worker could not be reached.
    pub fn send(&mut self, frames: Vec<(u16, TextFrame)>, state: &mut State) -> Vec<RequestId> {
        let mut lost = Vec::new();
        for (worker, frame) in frames {
            if !self.settle(worker) {
                lost.extend(self.fail(worker, frame, SendError::NotReady, state));
            } else if let Err(error) = self.pass(worker, &frame) {
                lost.extend(self.fail(worker, frame, error, state));
            }
        }
        lost
    }

    /// Tries to send what is owed.
    pub fn settle_all(&mut self) {
        let workers: Vec<u16> = self.owed.keys().copied().collect();
        for worker in workers {
            self.settle(worker);
        }
    }

    /// Sends what a worker is owed; true when nothing is left.
    fn settle(&mut self, worker: u16) -> bool {
        let Some(mut owed) = self.owed.remove(&worker) else {
            return true;
        };
        while let Some(frame) = owed.frames.front() {
            if self.pass(worker, frame).is_err() {
                if owed.since.elapsed() < KEEP_OWED {
                    self.owed.insert(worker, owed);
                }
                return false;
            }
            owed.frames.pop_front();
        }
        true
    }

    fn pass(&self, worker: u16, frame: &TextFrame) -> Result<(), SendError> {
        let outbox = self
            .outboxes
            .get(usize::from(worker))
            .ok_or(SendError::NotReady)?;
        outbox.send(&frame.clone().into())
    }

    fn fail(
        &mut self,
        worker: u16,
        frame: TextFrame,
        error: SendError,
        state: &mut State,
    ) -> Vec<RequestId> {
        let (farewell, ended) = state.fail_worker(
            worker,
            503,
            "the text of this answer could not be delivered",
        );
        tracing::warn!(worker, %error, requests = ended.ids.len(), "entry worker not reached; its requests end");
        if usize::from(worker) < self.outboxes.len() {
            let owed = self.owed.entry(worker).or_insert_with(|| Owed {
                since: Instant::now(),
                frames: VecDeque::new(),
            });
            owed.frames.push_back(frame);
            owed.frames.extend(farewell);
            while owed.frames.len() > MAX_OWED {
                owed.frames.pop_front();
            }
        }
        ended.ids
    }
}
