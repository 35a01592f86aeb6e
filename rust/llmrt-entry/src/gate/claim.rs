//! A client request with the answers that it asks for, as the ledger keeps it.

use std::rc::Rc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::turns::Ticket;
use crate::tenants::Tenant;

/// Whose claim it is, and its number there.
pub type ClaimId = (u64, u64);

/// The answers that a claim is to have, once their prompts are tokens.
#[derive(Clone, Debug)]
pub struct Answers {
    pub answers: Vec<Answer>,
    /// Lower runs first.
    pub priority: i32,
    /// When they must have ended.
    pub deadline: Option<Instant>,
}

impl Answers {
    /// Answers to prompts of so many `tokens` each, none of them submitted.
    pub fn new(tokens: &[u32], priority: i32, deadline: Option<Instant>) -> Self {
        let answer = |&tokens| Answer {
            waits: Some(tokens),
            placed: false,
        };
        Self {
            answers: tokens.iter().map(answer).collect(),
            priority,
            deadline,
        }
    }

    /// All tokens that wait.
    pub fn tokens(&self) -> u32 {
        let tokens = self.answers.iter().filter_map(|answer| answer.waits);
        tokens.fold(0, u32::saturating_add)
    }
}

/// What became of a claim that waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// It may be submitted.
    Turn,
    /// It was given up, because it could not make it any more.
    Late,
}

/// One answer of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Tokens of its prompt while they wait for the first of the answer.
    pub waits: Option<u32>,
    /// Whether it has a place among those that are submitted.
    pub placed: bool,
}

/// A claim as it stands.
pub struct Claim {
    pub tenant: Rc<Tenant>,
    /// Answers that are open, or will be.
    pub permits: u32,
    /// Empty until the prompts are tokens.
    pub(super) answers: Vec<Answer>,
    pub(super) priority: i32,
    pub(super) deadline: Option<Instant>,
    /// Whether the keeper is told how its answers go on.
    pub(super) told: bool,
    pub(super) ticket: Option<Ticket>,
    /// By when it was queued.
    pub(super) order: u64,
}

impl Claim {
    pub(super) fn new(tenant: &Rc<Tenant>, permits: u32) -> Self {
        Self {
            tenant: tenant.clone(),
            permits,
            answers: Vec::new(),
            priority: 0,
            deadline: None,
            told: true,
            ticket: None,
            order: 0,
        }
    }

    /// Its answers as they stand, for the keeper; none until the prompts are tokens, nor where it would not hear of
    /// their ends.
    pub fn answers_told(&self) -> Answers {
        let answers = if self.told { &*self.answers } else { &[] };
        Answers {
            answers: answers.to_vec(),
            priority: self.priority,
            deadline: self.deadline,
        }
    }

    /// Whether it waits for its turn.
    pub fn is_in_line(&self) -> bool {
        self.ticket.is_some()
    }

    /// Whether it has answers that have not begun.
    pub(super) fn waits(&self) -> bool {
        self.answers.iter().any(|answer| answer.waits.is_some())
    }

    /// Whether none of its answers has begun.
    pub(super) fn waits_whole(&self) -> bool {
        self.answers.iter().all(|answer| answer.waits.is_some())
    }

    /// Its place in the order in which claims are expected to begin.
    pub(super) fn rank(&self) -> (i32, u64) {
        (self.priority, self.order)
    }
}
