//! What a worker knows of the core behind it, and calls to it.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use llmrt_link::{Outbox, PeerState};
use llmrt_wire::Message;
use tokio::sync::{Mutex, Notify, mpsc, watch};

use crate::api::ApiError;
use crate::calls::Calls;
use crate::metrics::CoreStats;

const CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// How much later than another worker this one may hear of a core that is up.
const NEWS: Duration = Duration::from_secs(2);

/// Whether requests can be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoreState {
    /// Not all of it has answered yet.
    Starting,
    Up,
    /// It died, or one of its processes did.
    Down {
        reason: Rc<str>,
    },
}

/// The scheduler and the detokenizers, as seen over the links.
pub struct Core {
    outbox: Arc<dyn Outbox>,
    scheduler: watch::Receiver<PeerState>,
    /// Detokenizers that the core has, those that have joined the results inbox, and why one has left.
    detokenizers: usize,
    joined: RefCell<HashSet<u32>>,
    joins: Notify,
    lost_detokenizer: RefCell<Option<Rc<str>>>,
    /// A scheduler that the supervisor has told the death of.
    told: RefCell<Option<(u64, Rc<str>)>>,
    /// When the supervisor expects a core that is down to be up again.
    back_at: Cell<Option<Instant>>,
    calls: Calls,
    stats: Mutex<Known>,
}

/// The last counts, and when they were last asked for, with or without success.
#[derive(Default)]
struct Known {
    asked: Option<Instant>,
    stats: CoreStats,
}

impl Core {
    /// A core with so many `detokenizers`, none of which has answered yet.
    pub fn new(outbox: Arc<dyn Outbox>, detokenizers: usize) -> Self {
        Self {
            scheduler: outbox.state(),
            calls: Calls::new(outbox.clone()),
            outbox,
            detokenizers,
            joined: RefCell::default(),
            joins: Notify::new(),
            lost_detokenizer: RefCell::default(),
            told: RefCell::default(),
            back_at: Cell::new(None),
            stats: Mutex::default(),
        }
    }

    /// The state now.
    pub fn state(&self) -> CoreState {
        let incarnation = match &*self.scheduler.borrow() {
            PeerState::Connecting => None,
            PeerState::Dead { reason } => {
                return CoreState::Down {
                    reason: reason.as_ref().into(),
                };
            }
            PeerState::Ready { incarnation, .. } => Some(*incarnation),
        };
        if let Some((dead, reason)) = &*self.told.borrow()
            && Some(*dead) == incarnation
        {
            return CoreState::Down {
                reason: reason.clone(),
            };
        }
        if self.joined.borrow().len() < self.detokenizers {
            if let Some(reason) = &*self.lost_detokenizer.borrow() {
                return CoreState::Down {
                    reason: reason.clone(),
                };
            }
            return CoreState::Starting;
        }
        if incarnation.is_some() {
            CoreState::Up
        } else {
            CoreState::Starting
        }
    }

    /// Waits a moment while the core has not answered yet: another worker may have told the client that it is up.
    pub async fn settle(&self) {
        let settled = async {
            let mut scheduler = self.watch_scheduler();
            while self.state() == CoreState::Starting {
                tokio::select! {
                    changed = scheduler.changed() => if changed.is_err() { return },
                    () = self.joins.notified() => {}
                }
            }
        };
        // Who is late is told that it is.
        let _ = tokio::time::timeout(NEWS, settled).await;
    }

    /// The scheduler's state as it changes.
    pub fn watch_scheduler(&self) -> watch::Receiver<PeerState> {
        self.scheduler.clone()
    }

    /// The supervisor says that the scheduler of this incarnation is dead. Holds until another one has answered.
    /// Returns whether it is the one that holds the open requests: the news may be older than its successor, or the
    /// link has told of it already.
    pub fn told_down(&self, dead: u64, reason: &str) -> bool {
        let concerned = matches!(
            *self.scheduler.borrow(),
            PeerState::Ready { incarnation, .. } if incarnation == dead
        );
        if concerned {
            *self.told.borrow_mut() = Some((dead, reason.into()));
        }
        concerned
    }

    /// The supervisor expects a core that is down to be up again in so long.
    pub fn expect_back(&self, wait: Duration) {
        self.back_at.set(Some(Instant::now() + wait));
    }

    /// 503 with `message`, and with the time after which to try again.
    pub fn unavailable(&self, message: &str) -> ApiError {
        let error = ApiError::unavailable(message);
        match self
            .back_at
            .get()
            .map(|at| at.saturating_duration_since(Instant::now()))
        {
            Some(wait) if wait > Duration::ZERO => error.retry_after(wait),
            // Nothing is expected, or it is late.
            _ => error,
        }
    }

    pub fn detokenizer_joined(&self, index: u32) {
        self.joined.borrow_mut().insert(index);
        self.joins.notify_waiters();
    }

    pub fn detokenizer_left(&self, index: u32, reason: &str) {
        self.joined.borrow_mut().remove(&index);
        *self.lost_detokenizer.borrow_mut() = Some(reason.into());
    }

    /// Messages from the scheduler on the submit link; `None` when they were taken before.
    pub fn take_incoming(&self) -> Option<mpsc::Receiver<Message>> {
        self.outbox.incoming()
    }

    /// Takes a message that the scheduler sent on the submit link.
    pub fn incoming(&self, message: Message) {
        if let Message::Reply(reply) = message {
            self.calls.answered(reply);
        }
    }

    /// The scheduler's counts: fresh ones, or the last known when it does not answer. Callers that come while a call
    /// is on its way share the next one, so that nobody waits for more than two.
    pub async fn stats(&self) -> CoreStats {
        let wanted = Instant::now();
        let mut known = self.stats.lock().await;
        if known.asked.is_some_and(|asked| asked >= wanted) {
            return known.stats.clone();
        }
        let asked = Instant::now();
        if let Some(json) = self.calls.call("stats", "{}", CALL_TIMEOUT).await {
            match serde_json::from_str(&json) {
                Ok(stats) => known.stats = stats,
                Err(error) => tracing::warn!(%error, "the scheduler's stats cannot be read"),
            }
        }
        known.asked = Some(asked);
        known.stats.clone()
    }

    /// Calls whose answers are waited for.
    #[cfg(test)]
    pub fn calls(&self) -> usize {
        self.calls.waiting()
    }
}
