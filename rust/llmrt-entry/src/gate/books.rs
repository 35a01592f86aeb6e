//! The server's ledger, with the names that workers and their claims have there.

use std::rc::Rc;
use std::time::Instant;

use llmrt_link::PeerId;

use super::claim::{ClaimId, News};
use super::ledger::Ledger;
use super::ops::Op;
use super::refusal::Refusal;
use crate::tenants::Tenant;

/// Answers to workers: to whom, for which claim, and what.
pub(super) type Answered = (PeerId, u64, Result<(), Refusal>);

/// The ledger of a server with several workers.
pub(super) struct Books {
    ledger: Ledger,
    answers: Vec<Answered>,
}

impl Books {
    pub(super) fn new(ledger: Ledger) -> Self {
        Self {
            ledger,
            answers: Vec::new(),
        }
    }

    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// What there is to tell workers since the last call.
    pub(super) fn take_answers(&mut self) -> Vec<Answered> {
        let told = |(claim, news): (ClaimId, News)| {
            let answer = match news {
                News::Turn => Ok(()),
                News::Late => Err(Refusal::too_late()),
            };
            (claim.0, claim.1, answer)
        };
        self.answers
            .extend(self.ledger.take_news().into_iter().map(told));
        std::mem::take(&mut self.answers)
    }

    /// Does what `worker` asks; `tenant` is whom the operation names.
    pub(super) fn apply(&mut self, worker: PeerId, op: Op, tenant: &Rc<Tenant>, now: Instant) {
        let ledger = &mut self.ledger;
        match op {
            Op::Admit {
                claim,
                count,
                counted,
                ..
            } => {
                let answer = ledger.admit((worker, claim), tenant, count, counted, now);
                self.answers.push((worker, claim, answer));
            }
            Op::Queue { claim, answers } => {
                match ledger.queue((worker, claim), answers.read(now), now) {
                    Ok(false) => {}
                    answer => self.answers.push((worker, claim, answer.map(drop))),
                }
            }
            Op::Hold {
                claim,
                permits,
                answers,
                in_line,
                ..
            } => {
                let id = (worker, claim);
                ledger.grant(id, tenant, permits);
                ledger.resume(id, answers.read(now));
                if in_line && ledger.line_up(id) {
                    self.answers.push((worker, claim, Ok(())));
                }
            }
            Op::Begun { claim, nth } => ledger.begun((worker, claim), nth, now),
            Op::Done { claim, nth } => ledger.done((worker, claim), nth, now),
            Op::Close { claim, ended } => ledger.close((worker, claim), ended, now),
            Op::GiveUp { claim } => ledger.give_up((worker, claim), now),
            Op::Used { tokens, .. } => tenant.take_tokens(tokens, now),
        }
    }

    /// A worker has died or lost its link: what it had is free.
    pub(super) fn left(&mut self, worker: PeerId, now: Instant) {
        self.ledger.left(worker, now);
    }
}
