//! Text frames on their way to the entry workers.

use std::collections::HashMap;
use std::sync::Arc;

use llmrt_link::{Outbox, SendError};
use llmrt_wire::{Message, RequestId, TextFrame};

use crate::owed::Owed;
use crate::state::{State, failure};

/// What clients read whose text got lost.
const LOST: &str = "the text of this answer could not be delivered";

/// The entry workers' outboxes, and what they could not take.
///
/// A frame that a worker does not take, and is not about to, is not followed by later ones as if nothing had happened:
/// the worker's open requests end with an error, which is kept for it.
pub struct Delivery {
    outboxes: Vec<Arc<dyn Outbox>>,
    owed: HashMap<u16, Owed>,
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
        let lost_text = failure(503, LOST);
        for (worker, frame) in frames {
            let frame = Message::from(frame);
            let passed = if self.settle(worker) {
                self.pass(worker, &frame)
            } else {
                Err(SendError::NotReady)
            };
            match passed {
                Ok(()) => {}
                Err(_) if self.is_about_to_take(worker) => self.owe(worker).push(frame, &lost_text),
                Err(error) => lost.extend(self.fail(worker, frame, error, state)),
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
        let (Some(owed), Some(outbox)) = (
            self.owed.get_mut(&worker),
            self.outboxes.get(usize::from(worker)),
        ) else {
            return true;
        };
        let settled = owed.settle(&**outbox);
        if settled || owed.is_stale() {
            self.owed.remove(&worker);
        }
        settled
    }

    /// Whether a worker is there and its answer to the greeting on its way. It takes requests since it was greeted: the
    /// first frames for them may be earlier than that answer.
    fn is_about_to_take(&self, worker: u16) -> bool {
        let outbox = self.outboxes.get(usize::from(worker));
        outbox.is_some_and(|outbox| outbox.is_greeting())
            && self.owed.get(&worker).is_none_or(Owed::has_room)
    }

    fn owe(&mut self, worker: u16) -> &mut Owed {
        self.owed.entry(worker).or_insert_with(Owed::new)
    }

    fn pass(&self, worker: u16, frame: &Message) -> Result<(), SendError> {
        let outbox = self
            .outboxes
            .get(usize::from(worker))
            .ok_or(SendError::NotReady)?;
        outbox.send(frame)
    }

    fn fail(
        &mut self,
        worker: u16,
        frame: Message,
        error: SendError,
        state: &mut State,
    ) -> Vec<RequestId> {
        let (farewell, ended) = state.fail_worker(worker, 503, LOST);
        tracing::warn!(worker, %error, requests = ended.ids.len(), "entry worker not reached; its requests end");
        if usize::from(worker) < self.outboxes.len() {
            let owed = self.owe(worker);
            let lost = failure(503, LOST);
            owed.push(frame, &lost);
            if let Some(farewell) = farewell {
                owed.push(farewell.into(), &lost);
            }
        }
        ended.ids
    }
}
