//! Who may have what: admission, and the order in which requests of several keys are submitted.
//!
//! A worker has a [`Gate`]. Alone, it decides by a ledger of its own. Where a server has several workers one ledger
//! counts for all: its [`Keeper`] lives in the supervisor's process, which outlives every worker, and the gates ask it.
//! Each gate still keeps a ledger of what it was granted. By that it decides while the keeper does not answer, and from
//! that the keeper learns, when it answers again, what the worker holds.

mod books;
mod claim;
mod keeper;
mod ledger;
mod link;
mod ops;
mod permit;
mod queue;
mod refusal;
#[cfg(test)]
mod tests;
mod turns;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use llmrt_link::Outbox;
use llmrt_wire::RequestId;
use tokio::sync::oneshot;

pub use claim::Answers;
pub use keeper::{Keeper, KeeperError};
pub use ledger::Bounds;
pub use permit::{Permit, Turn};
pub use refusal::Refusal;

use crate::tenants::Tenant;
use claim::News;
use ledger::Ledger;
use link::KeeperLink;
use ops::{Op, Told};

/// Whose claims stand in a gate's own ledger.
const OWN: u64 = 0;

/// What a request must pass before it is submitted.
pub struct Gate {
    bounds: Bounds,
    ledger: RefCell<Ledger>,
    next: Cell<u64>,
    /// Claims whose answers are waited for.
    asks: RefCell<HashMap<u64, Ask>>,
    /// What was submitted for claims with a deadline.
    submitted: RefCell<HashMap<u64, Vec<RequestId>>>,
    on_late: OnceCell<Box<dyn Fn(Vec<RequestId>)>>,
    keeper: Option<KeeperLink>,
}

/// What is asked for a claim.
struct Ask {
    tenant: Rc<Tenant>,
    what: What,
    answer: oneshot::Sender<Result<Vec<Permit>, Refusal>>,
}

enum What {
    Admit { count: u32, counted: bool },
    Queue(Answers),
}

/// Somebody who waits for an answer; who stops waiting gives up what is asked for.
struct Asking<'a>(&'a Gate, u64);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let Self(gate, claim) = *self;
        let ask = gate.asks.borrow_mut().remove(&claim);
        // Of a claim that was admitted the permits come back, and all else with them.
        if let Some(Ask {
            what: What::Admit { .. },
            ..
        }) = ask
        {
            gate.tell(Op::GiveUp { claim });
        }
    }
}

impl Gate {
    /// A gate that asks the keeper behind `keeper`, where there is one.
    pub fn new(bounds: Bounds, keeper: Option<Arc<dyn Outbox>>) -> Rc<Self> {
        Rc::new(Self {
            bounds,
            ledger: RefCell::new(Ledger::new(bounds)),
            next: Cell::new(0),
            asks: RefCell::default(),
            submitted: RefCell::default(),
            on_late: OnceCell::new(),
            keeper: keeper.map(KeeperLink::new),
        })
    }

    /// Has `act` end requests that were submitted and cannot make it any more. The first one is kept.
    pub fn on_late(&self, act: impl Fn(Vec<RequestId>) + 'static) {
        let _ = self.on_late.set(Box::new(act));
    }

    /// Permits for `count` answers: all or none. `counted` is a request that counts against what its tenant may send per
    /// minute.
    ///
    /// # Errors
    /// As [`Ledger::admit`].
    pub async fn admit(
        self: &Rc<Self>,
        tenant: &Rc<Tenant>,
        count: u32,
        counted: bool,
    ) -> Result<Vec<Permit>, Refusal> {
        let claim = self.next.get() + 1;
        self.next.set(claim);
        self.ask(claim, tenant, What::Admit { count, counted })
            .await
    }

    /// Waits until the answers that `permits` stand for may be submitted.
    ///
    /// # Errors
    /// As [`Ledger::queue`]; 408 when they cannot make it any more.
    pub async fn queue(
        self: &Rc<Self>,
        permits: &[Permit],
        answers: Answers,
    ) -> Result<Vec<Turn>, Refusal> {
        let Some(permit) = permits.first() else {
            return Ok(Vec::new());
        };
        let (claim, tenant) = (permit.claim(), permit.tenant());
        let count = answers.answers.len();
        let told = self.must_queue(tenant, &answers);
        if told || self.keeper.is_none() {
            self.ask(claim, tenant, What::Queue(answers)).await?;
        } else {
            self.with(|ledger| {
                ledger.resume((OWN, claim), answers);
                ledger.keep_to_itself((OWN, claim));
                ledger.place((OWN, claim));
            });
        }
        let turn = |nth| Turn::new(self.clone(), claim, nth, told);
        Ok((0..count).map(turn).collect())
    }

    /// What was submitted for a claim, to be ended when it cannot make it any more.
    pub fn submitted(&self, permit: &Permit, ids: Vec<RequestId>) {
        self.submitted.borrow_mut().insert(permit.claim(), ids);
    }

    /// Counts tokens of an answer, which nobody could know before.
    pub fn used(&self, tenant: &Tenant, tokens: u32, now: Instant) {
        tenant.take_tokens(tokens, now);
        if tenant.counts_tokens() {
            let key = key_of(tenant);
            self.tell(Op::Used { key, tokens });
        }
    }

    /// Permits that are out.
    pub fn permits_taken(&self) -> u32 {
        self.ledger.borrow().permits_taken()
    }

    /// Prompt tokens that wait.
    pub fn queued_tokens(&self) -> u64 {
        let tokens = self.asked().into_iter().map(u64::from).sum::<u64>();
        self.ledger.borrow().queued_tokens() + tokens
    }

    /// Requests that wait for their turn.
    pub fn waiting_turns(&self) -> usize {
        self.ledger.borrow().waiting_turns() + self.asked().len()
    }

    /// Whether a claim's answers bear on limits, or limits on them. With one tenant, without bounds, the permits alone
    /// do, and the keeper needs to know no more.
    fn must_queue(&self, tenant: &Tenant, answers: &Answers) -> bool {
        tenant.has_others()
            || tenant.counts_tokens()
            || tenant.bounds_queue()
            || self.bounds.queued_tokens > 0
            || answers.deadline.is_some()
    }

    async fn ask(
        self: &Rc<Self>,
        claim: u64,
        tenant: &Rc<Tenant>,
        what: What,
    ) -> Result<Vec<Permit>, Refusal> {
        let (answer, answered) = oneshot::channel();
        let ask = Ask {
            tenant: tenant.clone(),
            what,
            answer,
        };
        let _asking = Asking(self, claim);
        if self.asks_keeper() {
            self.tell(ask.op(claim));
            self.asks.borrow_mut().insert(claim, ask);
        } else {
            self.decide(claim, ask);
        }
        // Whoever keeps it answers, and lives as long as the gate.
        answered.await.unwrap_or_else(|_| Err(Refusal::too_late()))
    }

    /// Decides by the ledger of this gate; what has to wait is kept.
    fn decide(self: &Rc<Self>, claim: u64, ask: Ask) {
        let (id, now) = ((OWN, claim), Instant::now());
        let decided = self.with(|ledger| match &ask.what {
            What::Admit { count, counted } => {
                let admitted = ledger.admit(id, &ask.tenant, *count, *counted, now);
                admitted.map(|()| true)
            }
            What::Queue(answers) => ledger.queue(id, answers.clone(), now),
        });
        match decided {
            Ok(true) => self.grant(claim, ask),
            Ok(false) => drop(self.asks.borrow_mut().insert(claim, ask)),
            Err(refusal) => drop(ask.answer.send(Err(refusal))),
        }
    }

    /// Answers that all is well. Where the client leaves now, its permits come back by themselves.
    fn grant(self: &Rc<Self>, claim: u64, ask: Ask) {
        let permits = match ask.what {
            What::Admit { count, .. } => Permit::several(self, claim, &ask.tenant, count),
            What::Queue(_) => Vec::new(),
        };
        drop(ask.answer.send(Ok(permits)));
    }

    /// The keeper has answered for a claim, or told of one that it has given up.
    fn answered(self: &Rc<Self>, claim: u64, answer: Result<(), Refusal>) {
        let ask = self.asks.borrow_mut().remove(&claim);
        match (ask, answer) {
            (Some(ask), Ok(())) => {
                self.copy(claim, &ask);
                self.grant(claim, ask);
            }
            (Some(ask), Err(refusal)) => drop(ask.answer.send(Err(refusal))),
            // What was refused before the link broke was decided again meanwhile.
            (None, Err(Refusal { why: None, .. })) => {
                self.with(|ledger| ledger.give_up((OWN, claim), Instant::now()));
                self.late(claim);
            }
            (None, _) => {}
        }
    }

    /// Enters into this gate's ledger what the keeper has granted.
    fn copy(&self, claim: u64, ask: &Ask) {
        let (id, now) = ((OWN, claim), Instant::now());
        self.with(|ledger| match &ask.what {
            What::Admit { count, counted } => {
                ledger.grant(id, &ask.tenant, *count);
                if *counted {
                    ask.tenant.count_request(now);
                }
            }
            What::Queue(answers) => {
                if !ledger.has_answers(id) {
                    ask.tenant.take_tokens(answers.tokens(), now);
                    ledger.resume(id, answers.clone());
                }
                ledger.place(id);
            }
        });
    }

    /// Acts on this gate's ledger, and tells those whom it concerns.
    fn with<R>(&self, act: impl FnOnce(&mut Ledger) -> R) -> R {
        let (done, news) = {
            let mut ledger = self.ledger.borrow_mut();
            (act(&mut ledger), ledger.take_news())
        };
        for ((_, claim), news) in news {
            let ask = self.asks.borrow_mut().remove(&claim);
            match (ask, news) {
                (Some(ask), News::Turn) => drop(ask.answer.send(Ok(Vec::new()))),
                (Some(ask), News::Late) => drop(ask.answer.send(Err(Refusal::too_late()))),
                (None, News::Late) => self.late(claim),
                (None, News::Turn) => {}
            }
        }
        done
    }

    fn late(&self, claim: u64) {
        let ids = self.submitted.borrow_mut().remove(&claim);
        if let (Some(ids), Some(act)) = (ids, self.on_late.get()) {
            act(ids);
        }
    }

    fn begun(&self, claim: u64, nth: usize, told: bool) {
        self.with(|ledger| ledger.begun((OWN, claim), nth, Instant::now()));
        if told {
            self.tell(Op::Begun { claim, nth });
        }
    }

    fn done(&self, claim: u64, nth: usize, told: bool) {
        self.with(|ledger| ledger.done((OWN, claim), nth, Instant::now()));
        if told {
            self.tell(Op::Done { claim, nth });
        }
    }

    fn close(&self, claim: u64, ended: bool) {
        let holds = self.with(|ledger| {
            ledger.close((OWN, claim), ended, Instant::now());
            ledger.holds((OWN, claim))
        });
        if !holds {
            self.submitted.borrow_mut().remove(&claim);
        }
        self.tell(Op::Close { claim, ended });
    }

    /// Tokens of each claim that waits for its turn at the keeper's.
    fn asked(&self) -> Vec<u32> {
        if !self.asks_keeper() {
            return Vec::new();
        }
        let ledger = self.ledger.borrow();
        let asks = self.asks.borrow();
        let queued = asks.iter().filter_map(|(claim, ask)| match &ask.what {
            What::Queue(_) if ledger.has_answers((OWN, *claim)) => Some(0),
            What::Queue(answers) => Some(answers.tokens()),
            What::Admit { .. } => None,
        });
        queued.collect()
    }
}

impl Ask {
    fn op(&self, claim: u64) -> Op {
        match &self.what {
            What::Admit { count, counted } => Op::Admit {
                claim,
                key: key_of(&self.tenant),
                count: *count,
                counted: *counted,
            },
            What::Queue(answers) => Op::Queue {
                claim,
                answers: Told::new(answers.clone(), Instant::now()),
            },
        }
    }
}

fn key_of(tenant: &Tenant) -> Option<String> {
    tenant.key().map(|key| key.to_string())
}
