//! The link from a worker's gate to the keeper of the server's ledger.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use llmrt_link::{Outbox, PeerState, SendError};
use llmrt_wire::{Call, Message, Reply};
use tokio::sync::{Notify, watch};

use super::ops::{METHOD, Op, Told};
use super::refusal::{self, Refusal};
use super::{Ask, Gate, OWN, key_of};

/// Pause before a full link is tried again.
const PAUSE: Duration = Duration::from_millis(20);

/// What a gate has to tell the keeper. All that comes up in one turn of the worker's loop leaves in one message.
pub(super) struct KeeperLink {
    outbox: Arc<dyn Outbox>,
    is_up: Cell<bool>,
    /// How often a keeper was lost; what one was to be told is not for its successor.
    losses: Cell<u64>,
    untold: RefCell<Vec<Op>>,
    more: Notify,
}

impl KeeperLink {
    pub(super) fn new(outbox: Arc<dyn Outbox>) -> Self {
        Self {
            outbox,
            is_up: Cell::new(false),
            losses: Cell::new(0),
            untold: RefCell::default(),
            more: Notify::new(),
        }
    }

    fn tell(&self, op: Op) {
        let mut untold = self.untold.borrow_mut();
        match (&op, untold.last_mut()) {
            (
                Op::Used { key, tokens },
                Some(Op::Used {
                    key: last,
                    tokens: all,
                }),
            ) if last == key => {
                *all = all.saturating_add(*tokens);
            }
            _ => untold.push(op),
        }
        self.more.notify_one();
    }

    /// Sends what is to be told, as it comes up.
    async fn send(&self) {
        loop {
            self.more.notified().await;
            let ops = self.untold.take();
            if ops.is_empty() || !self.is_up.get() {
                continue;
            }
            // Plain data has no way to fail.
            let arguments = serde_json::to_string(&ops).unwrap_or_default();
            let message = Message::from(Call {
                tag: Default::default(),
                call: 0,
                method: METHOD.to_owned(),
                arguments,
            });
            let losses = self.losses.get();
            while self.losses.get() == losses && self.outbox.send(&message) == Err(SendError::Full)
            {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

impl Gate {
    /// Keeps in touch with the keeper; returns at once where there is none.
    pub async fn ask_keeper(self: Rc<Self>) {
        let Some(keeper) = &self.keeper else {
            return;
        };
        let state = keeper.outbox.state();
        tokio::join!(keeper.send(), self.watch(state), self.listen());
    }

    /// Whether the keeper decides.
    pub(super) fn asks_keeper(&self) -> bool {
        self.keeper
            .as_ref()
            .is_some_and(|keeper| keeper.is_up.get())
    }

    /// Tells the keeper, if it is there; what it misses else it learns when it is.
    pub(super) fn tell(&self, op: Op) {
        if let Some(keeper) = self.keeper.as_ref().filter(|keeper| keeper.is_up.get()) {
            keeper.tell(op);
        }
    }

    async fn watch(self: &Rc<Self>, mut state: watch::Receiver<PeerState>) {
        loop {
            let now = state.borrow_and_update().clone();
            match &now {
                PeerState::Ready { .. } => self.keeper_joined(),
                PeerState::Dead { reason } => {
                    let reason = &**reason;
                    tracing::warn!(reason, "limits hold in this worker alone for now");
                    self.keeper_left();
                }
                PeerState::Connecting => self.keeper_left(),
            }
            if state.changed().await.is_err() {
                return;
            }
        }
    }

    async fn listen(self: &Rc<Self>) {
        let incoming = self
            .keeper
            .as_ref()
            .and_then(|keeper| keeper.outbox.incoming());
        let Some(mut incoming) = incoming else {
            return;
        };
        while let Some(message) = incoming.recv().await {
            if let Message::Reply(reply) = message {
                self.reply(reply);
            }
        }
    }

    fn reply(self: &Rc<Self>, reply: Reply) {
        if reply.ok {
            return self.answered(reply.call, Ok(()));
        }
        match serde_json::from_str::<refusal::Told>(&reply.value) {
            Ok(told) => self.answered(reply.call, Err(Refusal::from(told))),
            Err(error) => tracing::error!(%error, "an answer about limits cannot be read"),
        }
    }

    /// From now on the keeper decides. It is told what this worker has, and who waits here waits there.
    fn keeper_joined(self: &Rc<Self>) {
        // Another keeper may have taken its predecessor's place unnoticed.
        self.keeper_left();
        let Some(keeper) = &self.keeper else {
            return;
        };
        let now = Instant::now();
        let mut ledger = self.ledger.borrow_mut();
        let held = ledger.claims().map(|(&(_, claim), held)| Op::Hold {
            claim,
            key: key_of(&held.tenant),
            permits: held.permits,
            answers: Told::new(held.answers_told(), now),
            in_line: held.is_in_line(),
        });
        let held: Vec<Op> = held.collect();
        for op in &held {
            if let Op::Hold { claim, .. } = op {
                ledger.leave_line((OWN, *claim));
            }
        }
        keeper.untold.replace(held);
        keeper.is_up.set(true);
        keeper.more.notify_one();
    }

    /// From now on this worker decides by what it knows, at once for those who wait for the keeper's answer.
    fn keeper_left(self: &Rc<Self>) {
        let Some(keeper) = &self.keeper else {
            return;
        };
        keeper.untold.borrow_mut().clear();
        if keeper.is_up.replace(false) {
            keeper.losses.set(keeper.losses.get() + 1);
            let mut asks: Vec<(u64, Ask)> = self.asks.borrow_mut().drain().collect();
            // In the order in which they came.
            asks.sort_by_key(|(claim, _)| *claim);
            for (claim, ask) in asks {
                self.decide(claim, ask);
            }
        }
    }
}
