//! Memory for request bodies, all of a shard together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of request bodies that a shard may hold at once.
#[derive(Clone)]
pub struct BodyBudget(Arc<AtomicUsize>);

impl BodyBudget {
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(bytes)))
    }

    /// Bytes that are free now.
    #[cfg(test)]
    pub fn left(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Room for nothing yet.
    pub fn reserve(&self) -> Reservation {
        Reservation {
            budget: self.clone(),
            bytes: 0,
        }
    }
}

/// Part of a [`BodyBudget`], given back when dropped. It goes wherever the bytes go, to other threads too.
pub struct Reservation {
    budget: BodyBudget,
    bytes: usize,
}

impl Reservation {
    /// Takes `more` bytes; false when so many are not left.
    pub fn grow(&mut self, more: usize) -> bool {
        let left = &self.budget.0;
        let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            left.checked_sub(more)
        });
        if taken.is_ok() {
            self.bytes += more;
        }
        taken.is_ok()
    }

    /// Gives back what was taken.
    pub fn clear(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.budget.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.clear();
    }
}

/// What a request body has become so far, and the body's place in the budget.
pub struct Held<T> {
    pub value: T,
    pub place: Reservation,
}

impl<T> Held<T> {
    /// Length of the body that it came from.
    pub fn body_len(&self) -> usize {
        self.place.bytes
    }

    /// Another value in the same place.
    pub fn try_map<R, E>(self, change: impl FnOnce(T) -> Result<R, E>) -> Result<Held<R>, E> {
        let Self { value, place } = self;
        change(value).map(|value| Held { value, place })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_comes_back() {
        let budget = BodyBudget::new(10);
        let (mut one, mut two) = (budget.reserve(), budget.reserve());
        assert!(one.grow(4) && one.grow(2) && two.grow(4));
        assert!(!two.grow(1));
        one.clear();
        assert!(two.grow(6));
        assert_eq!(budget.left(), 0);
        drop(two);
        assert_eq!(budget.left(), 10);
        let held = Held {
            value: (),
            place: one,
        };
        assert!(held.try_map(|()| Err::<(), _>("no")).is_err());
        assert_eq!(budget.left(), 10);
    }
}
