//! Who has which place.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::Instant;

use serde_json::{Value, json};

use super::config::SlotConfig;
use crate::outgoing::Outgoing;

/// A node as its place knows it.
#[derive(Clone)]
pub struct Occupant {
    /// Random per process.
    pub node: u64,
    pub address: SocketAddr,
    pub since: Instant,
    /// What waits for it, once it has its tunnel.
    pub outgoing: Option<Outgoing>,
}

struct Place {
    worker: u16,
    occupant: Option<Occupant>,
    /// When its last occupant left.
    left: Option<Instant>,
    /// Node that had it last.
    last: Option<u64>,
}

/// All places, and their nodes.
pub struct Places(RefCell<Vec<Place>>);

impl Places {
    pub fn new(slots: &[SlotConfig]) -> Self {
        let place = |slot: &SlotConfig| Place {
            worker: slot.worker,
            occupant: None,
            left: None,
            last: None,
        };
        Self(RefCell::new(slots.iter().map(place).collect()))
    }

    /// Gives `occupant` a place, by its index: that which it still holds, else `wanted` if it is free, else the one
    /// that is free for the longest time, so that a node that was cut off finds its own again. None when all are taken.
    pub fn take(&self, occupant: Occupant, wanted: Option<u16>) -> Option<usize> {
        let mut places = self.0.borrow_mut();
        let is_its_own = |place: &Place| {
            (place.occupant.as_ref()).is_some_and(|other| other.node == occupant.node)
        };
        let is_wanted = |place: &Place| {
            place.occupant.is_none()
                && (place.last == Some(occupant.node) || Some(place.worker) == wanted)
        };
        let index = (places.iter().position(is_its_own))
            .or_else(|| places.iter().position(is_wanted))
            .or_else(|| {
                let free = places.iter().enumerate();
                free.filter(|(_, place)| place.occupant.is_none())
                    .min_by_key(|(_, place)| place.left)
                    .map(|(index, _)| index)
            })?;
        places[index].last = Some(occupant.node);
        places[index].occupant = Some(occupant);
        Some(index)
    }

    /// Number of the place among the entry workers.
    pub fn worker(&self, index: usize) -> u16 {
        self.0.borrow()[index].worker
    }

    /// The node that took the place at `since` has its tunnel.
    pub fn settled(&self, worker: u16, since: Instant, outgoing: Outgoing) {
        self.with(worker, since, |place| {
            if let Some(occupant) = &mut place.occupant {
                occupant.outgoing = Some(outgoing);
            }
        });
    }

    /// The node that took the place at `since` is gone; one that took it later is not.
    pub fn leave(&self, worker: u16, since: Instant) {
        self.with(worker, since, |place| {
            place.occupant = None;
            place.left = Some(Instant::now());
        });
    }

    fn with(&self, worker: u16, since: Instant, change: impl FnOnce(&mut Place)) {
        let mut places = self.0.borrow_mut();
        let its_own = |place: &&mut Place| {
            place.worker == worker
                && (place.occupant.as_ref()).is_some_and(|occupant| occupant.since == since)
        };
        if let Some(place) = places.iter_mut().find(its_own) {
            change(place);
        }
    }

    /// What somebody who looks in is told.
    pub fn stats(&self) -> Value {
        let places = self.0.borrow();
        let slots: Vec<Value> = (places.iter())
            .map(|place| match &place.occupant {
                Some(occupant) => json!({
                    "worker": place.worker,
                    "node": occupant.address.to_string(),
                    "seconds": occupant.since.elapsed().as_secs_f64(),
                    "queued_bytes": occupant.outgoing.as_ref().map_or(0, Outgoing::bytes),
                }),
                None => json!({"worker": place.worker, "node": null}),
            })
            .collect();
        let nodes = places.iter().filter(|place| place.occupant.is_some());
        json!({"nodes": nodes.count(), "slots": slots})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> Places {
        let slot = |worker| SlotConfig {
            worker,
            results: String::new(),
        };
        Places::new(&[slot(1), slot(2)])
    }

    fn occupant(node: u64) -> Occupant {
        Occupant {
            node,
            address: ([127, 0, 0, 1], 1).into(),
            since: Instant::now(),
            outgoing: None,
        }
    }

    #[test]
    fn a_node_that_comes_back_finds_its_place() {
        let places = places();
        let (first, second) = (occupant(1), occupant(2));
        assert_eq!(places.take(first.clone(), None), Some(0));
        assert_eq!(
            places.take(second.clone(), Some(1)),
            Some(1),
            "taken by another"
        );
        assert_eq!(places.take(occupant(3), Some(1)), None, "all are taken");
        // Before its loss was noticed, and after it.
        assert_eq!(places.take(occupant(2), None), Some(1));
        places.leave(2, second.since);
        assert_eq!(places.stats()["nodes"], 2, "that was the one before");
        places.leave(1, first.since);
        assert_eq!(places.take(occupant(4), Some(2)), Some(0));
    }

    #[test]
    fn a_stranger_gets_the_place_that_nobody_may_want_back() {
        let places = places();
        let one = occupant(1);
        assert_eq!(places.take(one.clone(), None), Some(0));
        places.leave(1, one.since);
        assert_eq!(places.take(occupant(2), None), Some(1));
        assert_eq!(places.take(occupant(1), Some(1)), Some(0));
    }
}
