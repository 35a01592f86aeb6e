//! In which order requests of several keys reach the scheduler.
//!
//! The scheduler's queue is one for all and as long as its policy wants it. So that the flood of one key does not stand
//! there before everybody else, only as many requests are submitted as run at once, and a few that take their place
//! without a pause. The others wait here, in a line for each key, and the lines take turns.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use tokio::sync::oneshot;

use crate::tenants::Tenant;

/// What the scheduler has or may be given.
pub struct Turns {
    places: u32,
    taken: Cell<u32>,
    lines: RefCell<Lines<Waiter>>,
}

/// A place among the submitted generations; given back when dropped.
pub struct Place(Rc<Turns>);

struct Waiter {
    count: u32,
    turn: oneshot::Sender<Vec<Place>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.set(self.0.taken.get() - 1);
        self.0.serve();
    }
}

impl Turns {
    /// For a scheduler that runs so many generations at once.
    pub fn new(running: u32) -> Rc<Self> {
        Rc::new(Self {
            places: running.saturating_add(running.div_ceil(8)),
            taken: Cell::new(0),
            lines: RefCell::default(),
        })
    }

    /// Waits for the turn of `count` generations together. They have it at once while there is a place, and where one
    /// tenant has everything.
    pub async fn turn(self: &Rc<Self>, tenant: &Rc<Tenant>, count: u32) -> Vec<Place> {
        if self.taken.get() < self.places || !tenant.has_others() {
            return self.take(count);
        }
        let (turn, served) = oneshot::channel();
        {
            let mut lines = self.lines.borrow_mut();
            // Those whose clients have left would otherwise pile up.
            lines.retain(tenant, |waiter| !waiter.turn.is_closed());
            lines.push(tenant, count, Waiter { count, turn });
        }
        // What serves lives as long as `self`.
        served.await.unwrap_or_default()
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.lines.borrow().len()
    }

    fn take(self: &Rc<Self>, count: u32) -> Vec<Place> {
        self.taken.set(self.taken.get() + count);
        (0..count).map(|_| Place(self.clone())).collect()
    }

    /// Gives free places to those whose turn it is. The last one may get more than are left.
    fn serve(self: &Rc<Self>) {
        while self.taken.get() < self.places {
            let next = self.lines.borrow_mut().pop();
            let Some(waiter) = next else { return };
            if !waiter.turn.is_closed() {
                // Where the client leaves now, the places come back by themselves.
                drop(waiter.turn.send(self.take(waiter.count)));
            }
        }
    }
}

/// A line for each tenant. They take turns; at its turn a line may send so much on as its tenant weighs, and what is
/// more than that it makes up for at its next turns.
struct Lines<T>(VecDeque<Line<T>>);

struct Line<T> {
    tenant: Rc<Tenant>,
    /// What it may still send on.
    left: i64,
    waiting: VecDeque<(u32, T)>,
}

impl<T> Default for Lines<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Lines<T> {
    fn len(&self) -> usize {
        self.0.iter().map(|line| line.waiting.len()).sum()
    }

    fn of(&mut self, tenant: &Rc<Tenant>) -> Option<&mut Line<T>> {
        self.0
            .iter_mut()
            .find(|line| Rc::ptr_eq(&line.tenant, tenant))
    }

    /// Puts `item`, which counts for `size`, at the end of its tenant's line.
    fn push(&mut self, tenant: &Rc<Tenant>, size: u32, item: T) {
        if let Some(line) = self.of(tenant) {
            return line.waiting.push_back((size, item));
        }
        self.0.push_back(Line {
            tenant: tenant.clone(),
            left: tenant.weight().into(),
            waiting: VecDeque::from([(size, item)]),
        });
    }

    fn retain(&mut self, tenant: &Rc<Tenant>, keep: impl Fn(&T) -> bool) {
        if let Some(line) = self.of(tenant) {
            line.waiting.retain(|(_, item)| keep(item));
        }
    }

    /// The item whose turn it is.
    fn pop(&mut self) -> Option<T> {
        loop {
            let line = self.0.front_mut()?;
            if line.waiting.is_empty() {
                self.0.pop_front();
            } else if line.left <= 0 {
                line.left += i64::from(line.tenant.weight());
                self.0.rotate_left(1);
            } else {
                let (size, item) = line.waiting.pop_front()?;
                line.left -= i64::from(size);
                return Some(item);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
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
    fn a_flood_waits_and_everybody_else_is_next() {
        let (flood, other) = (tenant(1), tenant(1));
        let turns = Turns::new(1);
        let mut places: Vec<Vec<Place>> = (0..2)
            .map(|_| turns.turn(&flood, 1).now_or_never().unwrap())
            .collect();
        let mut waiting: Vec<_> = (0..100).map(|_| Box::pin(turns.turn(&flood, 1))).collect();
        for one in &mut waiting {
            assert!(one.now_or_never().is_none());
        }
        let mut late = Box::pin(turns.turn(&other, 1));
        assert!((&mut late).now_or_never().is_none());
        assert_eq!(turns.waiting(), 101);
        // One of the flood was before it, and its client has left.
        drop(waiting.remove(0));
        places.clear();
        assert!((&mut waiting[0]).now_or_never().is_some());
        assert!((&mut late).now_or_never().is_some());
        drop((waiting, late));
        assert_eq!((turns.waiting(), turns.taken.get()), (0, 0));
    }

    #[test]
    fn nobody_waits_alone() {
        let alone = Tenant::new(Rules::default());
        let turns = Turns::new(1);
        let places = turns.turn(&alone, 50).now_or_never().unwrap();
        let more = turns.turn(&alone, 50).now_or_never().unwrap();
        assert_eq!(turns.taken.get(), 100);
        drop((places, more));
        assert_eq!(turns.taken.get(), 0);
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
