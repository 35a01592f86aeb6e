//! In which order requests of several keys reach the scheduler.
//!
//! The scheduler's queue is one for all and as long as its policy wants it. So that the flood of one key does not stand
//! there before everybody else, only as many requests are submitted as run at once, and a few that take their place
//! without a pause. The others wait here, in a line for each key, and the lines take turns.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use super::claim::ClaimId;
use crate::tenants::Tenant;

/// What the scheduler has or may be given, and who waits for it.
pub struct Turns {
    places: u32,
    taken: u32,
    lines: Lines<ClaimId>,
}

/// A place in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

impl Turns {
    /// For a scheduler that runs so many generations at once.
    pub fn new(running: u32) -> Self {
        Self {
            places: running.saturating_add(running.div_ceil(8)),
            taken: 0,
            lines: Lines::default(),
        }
    }

    /// Whether generations of `tenant` may be submitted without waiting: while there is a place, and where one tenant
    /// has everything.
    pub fn are_free(&self, tenant: &Tenant) -> bool {
        self.taken < self.places || !tenant.has_others()
    }

    /// Gives out `count` places, whether they are there or not.
    pub fn take(&mut self, count: u32) {
        self.taken += count;
    }

    /// `count` places are free again; who is next is to be asked for then.
    pub fn give_back(&mut self, count: u32) {
        self.taken -= count;
    }

    /// Places that are given out.
    #[cfg(test)]
    pub fn taken(&self) -> u32 {
        self.taken
    }

    /// Puts the `count` generations of a claim into its tenant's line.
    pub fn push(&mut self, tenant: &Rc<Tenant>, count: u32, claim: ClaimId) -> Ticket {
        self.lines.push(tenant, count, claim)
    }

    /// Takes a claim out of its line.
    pub fn remove(&mut self, tenant: &Rc<Tenant>, ticket: Ticket) {
        self.lines.remove(tenant, ticket);
    }

    /// The claim whose turn it is; `None` while no place is free. The last one may get more than are left.
    pub fn next(&mut self) -> Option<ClaimId> {
        (self.taken < self.places)
            .then(|| self.lines.pop())
            .flatten()
    }

    /// Claims that wait.
    pub fn waiting(&self) -> usize {
        self.lines.len()
    }
}

/// A line for each tenant. They take turns; at its turn a line may send so much on as its tenant weighs, and what is
/// more than that it makes up for at its next turns.
struct Lines<T> {
    lines: VecDeque<Line<T>>,
    next: u64,
}

struct Line<T> {
    tenant: Rc<Tenant>,
    /// What it may still send on.
    left: i64,
    /// By order of arrival.
    waiting: BTreeMap<u64, (u32, T)>,
}

impl<T> Default for Lines<T> {
    fn default() -> Self {
        Self {
            lines: VecDeque::new(),
            next: 0,
        }
    }
}

impl<T> Lines<T> {
    fn len(&self) -> usize {
        self.lines.iter().map(|line| line.waiting.len()).sum()
    }

    fn of(&mut self, tenant: &Rc<Tenant>) -> Option<&mut Line<T>> {
        self.lines
            .iter_mut()
            .find(|line| Rc::ptr_eq(&line.tenant, tenant))
    }

    /// Puts `item`, which counts for `size`, at the end of its tenant's line.
    fn push(&mut self, tenant: &Rc<Tenant>, size: u32, item: T) -> Ticket {
        let number = self.next;
        self.next += 1;
        if let Some(line) = self.of(tenant) {
            line.waiting.insert(number, (size, item));
        } else {
            self.lines.push_back(Line {
                tenant: tenant.clone(),
                left: tenant.weight().into(),
                waiting: BTreeMap::from([(number, (size, item))]),
            });
        }
        Ticket(number)
    }

    fn remove(&mut self, tenant: &Rc<Tenant>, ticket: Ticket) {
        if let Some(line) = self.of(tenant) {
            line.waiting.remove(&ticket.0);
        }
    }

    /// The item whose turn it is.
    fn pop(&mut self) -> Option<T> {
        loop {
            let line = self.lines.front_mut()?;
            if line.waiting.is_empty() {
                self.lines.pop_front();
            } else if line.left <= 0 {
                line.left += i64::from(line.tenant.weight());
                self.lines.rotate_left(1);
            } else {
                let (_, (size, item)) = line.waiting.pop_first()?;
                line.left -= i64::from(size);
                return Some(item);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tenants::Rules;

    fn tenant(weight: u32) -> Rc<Tenant> {
        let tenant = Tenant::new(Rules {
            weight,
            ..Rules::default()
        });
        tenant.set_share(0.5);
        tenant
    }

    #[test]
    fn lines_take_turns_by_weight() {
        let (flood, other) = (tenant(2), tenant(1));
        let mut lines = Lines::default();
        for number in 0..6 {
            lines.push(&flood, 1, format!("f{number}"));
        }
        for number in 0..3 {
            lines.push(&other, 1, format!("o{number}"));
        }
        let order: Vec<String> = std::iter::from_fn(|| lines.pop()).collect();
        assert_eq!(
            order,
            ["f0", "f1", "o0", "f2", "f3", "o1", "f4", "f5", "o2"]
        );
        assert_eq!(lines.len(), 0);
    }

    #[test]
    fn whoever_sends_much_at_once_waits_longer() {
        let (many, one) = (tenant(1), tenant(1));
        let mut lines = Lines::default();
        lines.push(&many, 3, "m0");
        lines.push(&many, 1, "m1");
        for item in ["o0", "o1", "o2", "o3"] {
            lines.push(&one, 1, item);
        }
        let order: Vec<&str> = std::iter::from_fn(|| lines.pop()).collect();
        assert_eq!(order, ["m0", "o0", "o1", "o2", "m1", "o3"]);
    }

    #[test]
    fn who_leaves_a_line_is_passed_over() {
        let (flood, other) = (tenant(1), tenant(1));
        let mut lines = Lines::default();
        let tickets = ["f0", "f1", "f2"].map(|item| lines.push(&flood, 1, item));
        lines.push(&other, 1, "o0");
        lines.remove(&flood, tickets[1]);
        assert_eq!(lines.len(), 3);
        assert_eq!([lines.pop(), lines.pop()], [Some("f0"), Some("o0")]);
        lines.remove(&flood, tickets[0]);
        assert_eq!([lines.pop(), lines.pop()], [Some("f2"), None]);
    }

    #[test]
    fn nobody_waits_alone_and_a_few_beside_what_runs() {
        let alone = Tenant::new(Rules::default());
        let mut turns = Turns::new(8);
        turns.take(100);
        assert!(turns.are_free(&alone) && !turns.are_free(&tenant(1)));
        turns.give_back(92);
        assert!(turns.are_free(&tenant(1)));
        let other = tenant(1);
        for number in 0..3 {
            turns.push(&other, 1, (0, number));
        }
        assert_eq!(turns.next(), Some((0, 0)));
        turns.take(1);
        assert_eq!((turns.next(), turns.waiting()), (None, 2));
    }

    proptest! {
        /// While both wait, neither gets ahead of its weight by more than a turn and the largest request.
        #[test]
        fn parts_follow_the_weights(
            weights in (1u32..5, 1u32..5),
            sizes in prop::collection::vec((any::<bool>(), 1u32..6), 1..200),
        ) {
            let tenants = [tenant(weights.0), tenant(weights.1)];
            let mut lines = Lines::default();
            let mut open = [0, 0];
            for (second, size) in sizes {
                let index = usize::from(second);
                lines.push(&tenants[index], size, (index, size));
                open[index] += 1;
            }
            let mut sent = [0.0, 0.0];
            while let Some((index, size)) = lines.pop() {
                sent[index] += f64::from(size) / f64::from(tenants[index].weight());
                open[index] -= 1;
                if open[0] == 0 || open[1] == 0 {
                    break;
                }
                prop_assert!((sent[0] - sent[1]).abs() <= 12.0, "{:?}", sent);
            }
            let left = std::iter::from_fn(|| lines.pop()).count();
            prop_assert_eq!(left, open[0] + open[1]);
        }
    }
}
