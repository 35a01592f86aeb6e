//! Calls to a process at the other end of a link, and their answers.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use llmrt_link::Outbox;
use llmrt_wire::{Call, Reply};
use tokio::sync::oneshot;

/// Calls over one link, which belongs to somebody else.
pub struct Calls {
    outbox: Arc<dyn Outbox>,
    waiting: RefCell<HashMap<u64, oneshot::Sender<Reply>>>,
    next: Cell<u64>,
}

/// A place among the calls that wait, given up when its caller stops waiting.
struct Place<'a>(&'a Calls, u64);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.waiting.borrow_mut().remove(&self.1);
    }
}

impl Calls {
    pub fn new(outbox: Arc<dyn Outbox>) -> Self {
        Self {
            outbox,
            waiting: RefCell::default(),
            next: Cell::new(0),
        }
    }

    /// Calls `method`, `arguments` being JSON; `None` when no good answer came within `patience`.
    pub async fn call(&self, method: &str, arguments: &str, patience: Duration) -> Option<String> {
        let call = self.next.get();
        self.next.set(call + 1);
        let (answer, answered) = oneshot::channel();
        let message = Call {
            method: method.to_owned(),
            arguments: arguments.to_owned(),
            call,
            tag: Default::default(),
        };
        self.outbox.send(&message.into()).ok()?;
        self.waiting.borrow_mut().insert(call, answer);
        let _place = Place(self, call);
        let reply = tokio::time::timeout(patience, answered).await.ok()?.ok()?;
        if !reply.ok {
            tracing::warn!(method, error = reply.value, "a call failed");
        }
        reply.ok.then_some(reply.value)
    }

    /// Takes an answer that came over the link.
    pub fn answered(&self, reply: Reply) {
        if let Some(waiting) = self.waiting.borrow_mut().remove(&reply.call) {
            // A caller that has stopped waiting needs no answer.
            let _ = waiting.send(reply);
        }
    }

    /// Calls whose answers are waited for.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.waiting.borrow().len()
    }
}
