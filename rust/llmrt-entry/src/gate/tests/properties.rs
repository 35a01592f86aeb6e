//! Random lives of claims of several workers.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::super::claim::{Answers, ClaimId, News};
use super::super::ledger::{Bounds, Ledger};
use super::tenant;
use crate::tenants::{Rules, Tenant};

const BOUNDS: Bounds = Bounds {
    permits: 12,
    running: 4,
    queued_tokens: 40,
};
const CONCURRENT: u32 = 5;
const QUEUED: u32 = 15;
/// Answers of a claim, and tokens of a prompt, at most.
const MOST: u32 = 3;
const LONGEST: u32 = 12;

#[derive(Clone, Debug)]
enum Step {
    Admit {
        worker: u64,
        tenant: usize,
        count: u32,
    },
    /// The prompts of a claim have become tokens.
    Queue {
        nth: usize,
        tokens: u32,
        deadline: Option<u64>,
    },
    Begin {
        nth: usize,
        answer: usize,
    },
    End {
        nth: usize,
        answer: usize,
    },
    Close {
        nth: usize,
    },
    GiveUp {
        nth: usize,
    },
    WorkerDies {
        worker: u64,
    },
    /// A worker has lost its link, and tells the same ledger what it holds.
    WorkerReturns {
        worker: u64,
    },
    Pass {
        millis: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (nth, worker) = (0usize..12, 1u64..4);
    prop_oneof![
        6 => (worker.clone(), 0usize..3, 1..=MOST)
            .prop_map(|(worker, tenant, count)| Step::Admit { worker, tenant, count }),
        6 => (nth.clone(), 1..=LONGEST, prop::option::of(0u64..400))
            .prop_map(|(nth, tokens, deadline)| Step::Queue { nth, tokens, deadline }),
        4 => (nth.clone(), 0usize..3).prop_map(|(nth, answer)| Step::Begin { nth, answer }),
        4 => (nth.clone(), 0usize..3).prop_map(|(nth, answer)| Step::End { nth, answer }),
        4 => nth.clone().prop_map(|nth| Step::Close { nth }),
        1 => nth.prop_map(|nth| Step::GiveUp { nth }),
        1 => worker.clone().prop_map(|worker| Step::WorkerDies { worker }),
        1 => worker.prop_map(|worker| Step::WorkerReturns { worker }),
        2 => (1u64..200).prop_map(|millis| Step::Pass { millis }),
    ]
}

/// What is known of a claim beside the ledger.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    Admitted(u32),
    InLine,
    Placed,
}

struct World {
    ledger: Ledger,
    tenants: [Rc<Tenant>; 3],
    claims: BTreeMap<ClaimId, Known>,
    next: u64,
    now: Instant,
}

impl World {
    fn new() -> Self {
        let bounded = Rules {
            concurrent: Some(CONCURRENT),
            queued_tokens: Some(QUEUED),
            ..Rules::default()
        };
        let heavy = Rules {
            weight: 3,
            ..Rules::default()
        };
        Self {
            ledger: Ledger::new(BOUNDS),
            tenants: [bounded, heavy, Rules::default()].map(tenant),
            claims: BTreeMap::new(),
            next: 0,
            now: Instant::now(),
        }
    }

    fn nth(&self, nth: usize) -> Option<ClaimId> {
        self.claims.keys().nth(nth).copied()
    }

    fn take(&mut self, step: Step) {
        let now = self.now;
        match step {
            Step::Admit {
                worker,
                tenant,
                count,
            } => {
                let id = (worker, self.next);
                self.next += 1;
                let tenant = self.tenants[tenant].clone();
                if self.ledger.admit(id, &tenant, count, true, now).is_ok() {
                    self.claims.insert(id, Known::Admitted(count));
                }
            }
            Step::Queue {
                nth,
                tokens,
                deadline,
            } => {
                let Some(id) = self.nth(nth) else { return };
                let Known::Admitted(count) = self.claims[&id] else {
                    return;
                };
                let deadline = deadline.map(|millis| now + Duration::from_millis(millis));
                let answers = Answers::new(&vec![tokens; count as usize], 0, deadline);
                if let Ok(placed) = self.ledger.queue(id, answers, now) {
                    let known = if placed { Known::Placed } else { Known::InLine };
                    self.claims.insert(id, known);
                }
            }
            Step::Begin { nth, answer } => {
                if let Some(id) = self.nth(nth).filter(|id| self.claims[id] == Known::Placed) {
                    self.ledger.begun(id, answer, now);
                }
            }
            Step::End { nth, answer } => {
                if let Some(id) = self.nth(nth).filter(|id| self.claims[id] == Known::Placed) {
                    self.ledger.done(id, answer, now);
                }
            }
            Step::Close { nth } => {
                if let Some(id) = self.nth(nth) {
                    self.ledger.close(id, true, now);
                }
            }
            Step::GiveUp { nth } => {
                if let Some(id) = self.nth(nth) {
                    self.ledger.give_up(id, now);
                }
            }
            Step::WorkerDies { worker } => self.ledger.left(worker, now),
            Step::WorkerReturns { worker } => self.give_back(worker),
            Step::Pass { millis } => self.now += Duration::from_millis(millis),
        }
    }

    fn give_back(&mut self, worker: u64) {
        let of = self
            .ledger
            .claims()
            .filter(|((whose, _), _)| *whose == worker);
        let held: Vec<_> = of
            .map(|(id, claim)| {
                let tenant = claim.tenant.clone();
                (
                    *id,
                    tenant,
                    claim.permits,
                    claim.answers_told(),
                    claim.is_in_line(),
                )
            })
            .collect();
        self.ledger.left(worker, self.now);
        for (id, tenant, permits, answers, in_line) in held {
            self.ledger.grant(id, &tenant, permits);
            self.ledger.resume(id, answers);
            if in_line && self.ledger.line_up(id) {
                self.claims.insert(id, Known::Placed);
            }
        }
    }

    fn hear(&mut self) -> Result<(), TestCaseError> {
        for (id, news) in self.ledger.take_news() {
            let known = self.claims.get(&id).copied();
            match news {
                News::Turn => {
                    prop_assert_eq!(known, Some(Known::InLine));
                    self.claims.insert(id, Known::Placed);
                }
                News::Late => prop_assert!(matches!(known, Some(Known::InLine | Known::Placed))),
            }
        }
        let ledger = &self.ledger;
        self.claims.retain(|id, _| ledger.holds(*id));
        Ok(())
    }

    /// No bound is exceeded, and the sums are those of the claims.
    fn check(&self, returned: bool) -> Result<(), TestCaseError> {
        let ledger = &self.ledger;
        let permits: u32 = ledger.claims().map(|(_, claim)| claim.permits).sum();
        prop_assert_eq!(ledger.permits_taken(), permits);
        let tokens = |claim: &Answers| u64::from(claim.tokens());
        let queued: u64 = ledger
            .claims()
            .map(|(_, claim)| tokens(&claim.answers_told()))
            .sum();
        prop_assert_eq!(ledger.queued_tokens(), queued);
        let in_line = ledger.claims().filter(|(_, claim)| claim.is_in_line());
        prop_assert_eq!(ledger.waiting_turns(), in_line.count());
        let placed = |claim: &Answers| claim.answers.iter().filter(|one| one.placed).count();
        let places: usize = ledger
            .claims()
            .map(|(_, claim)| placed(&claim.answers_told()))
            .sum();
        prop_assert_eq!(ledger.places_taken() as usize, places);
        if !returned {
            prop_assert!(permits <= BOUNDS.permits);
            // The last claim may get more than were left, and a prompt is taken where nothing waits.
            prop_assert!((places as u32) < BOUNDS.running + 1 + MOST);
            prop_assert!(queued <= u64::from(BOUNDS.queued_tokens.max(MOST * LONGEST)));
            let (open, waits) = self.tenants[0].counts();
            prop_assert!(open <= CONCURRENT && waits <= u64::from(QUEUED.max(MOST * LONGEST)));
        }
        // Nobody waits while there is a place.
        if ledger.waiting_turns() > 0 {
            prop_assert!(places as u32 > BOUNDS.running);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn bounds_hold_and_everything_comes_back(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        // Between a worker's loss and its return others may have taken what was its.
        let mut returned = false;
        for step in steps {
            returned |= matches!(step, Step::WorkerReturns { .. });
            world.take(step);
            world.hear()?;
            world.check(returned)?;
        }
        for worker in 1..4 {
            world.ledger.left(worker, world.now);
        }
        world.hear()?;
        world.check(false)?;
        prop_assert_eq!(world.ledger.claims().count(), 0);
        prop_assert_eq!(world.ledger.places_taken(), 0);
        for tenant in &world.tenants {
            prop_assert_eq!(tenant.counts(), (0, 0));
        }
    }
}
