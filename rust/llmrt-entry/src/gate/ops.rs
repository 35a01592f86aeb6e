//! What a worker tells the keeper of the server's ledger, and what it is answered.
//!
//! Operations travel in a [`Call`](llmrt_wire::Call) of [`METHOD`], several at a time and in order. An answer is a
//! [`Reply`](llmrt_wire::Reply) whose number is that of the claim: `ok` to an admission and to a turn, else a refusal.
//! One that nobody has asked for says that the claim was given up.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::claim::{Answer, Answers};

/// Method of the calls that carry operations.
pub const METHOD: &str = "ledger";

/// One operation on a ledger; see the methods of [`super::ledger::Ledger`]. `key` is what a tenant's key hashes to.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// To be answered at once.
    Admit {
        claim: u64,
        key: Option<String>,
        count: u32,
        counted: bool,
    },
    /// To be answered when it is the claim's turn.
    Queue {
        claim: u64,
        answers: Told,
    },
    /// A claim that this keeper does not know yet; to be answered like `Queue` if it waits for its turn.
    Hold {
        claim: u64,
        key: Option<String>,
        permits: u32,
        answers: Told,
        in_line: bool,
    },
    Begun {
        claim: u64,
        nth: usize,
    },
    Done {
        claim: u64,
        nth: usize,
    },
    Close {
        claim: u64,
        ended: bool,
    },
    GiveUp {
        claim: u64,
    },
    /// Tokens of answers.
    Used {
        key: Option<String>,
        tokens: u32,
    },
}

impl Op {
    /// Whom it names.
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Admit { key, .. } | Self::Hold { key, .. } | Self::Used { key, .. } => {
                key.as_deref()
            }
            _ => None,
        }
    }
}

/// [`Answers`], with the time that is left instead of the moment that another process has no clock for.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Told {
    answers: Vec<Answer>,
    priority: i32,
    left_ms: Option<u64>,
}

impl Told {
    pub fn new(answers: Answers, now: Instant) -> Self {
        let left = |deadline: Instant| deadline.saturating_duration_since(now).as_millis() as u64;
        Self {
            answers: answers.answers,
            priority: answers.priority,
            left_ms: answers.deadline.map(left),
        }
    }

    pub fn read(self, now: Instant) -> Answers {
        Answers {
            answers: self.answers,
            priority: self.priority,
            deadline: self.left_ms.map(|left| now + Duration::from_millis(left)),
        }
    }
}
