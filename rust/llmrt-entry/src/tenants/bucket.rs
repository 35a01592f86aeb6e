//! An allowance per minute.

use std::time::{Duration, Instant};

const MINUTE: f64 = 60.0;
/// Far below one unit, far above what rounding does to the level.
const NOTHING: f64 = 1e-5;

/// A token bucket that holds what a minute allows and fills evenly. What is known only afterwards may be taken too: the
/// bucket then owes, and nothing can be had until that is made up for.
#[derive(Clone, Debug)]
pub struct Bucket {
    per_minute: f64,
    level: f64,
    at: Instant,
}

impl Bucket {
    /// A full bucket.
    pub fn new(per_minute: u32, now: Instant) -> Self {
        Self {
            per_minute: per_minute.into(),
            level: per_minute.into(),
            at: now,
        }
    }

    /// Changes the allowance; what was taken stays taken.
    pub fn set(&mut self, per_minute: u32, now: Instant) {
        self.fill(now);
        self.level += f64::from(per_minute) - self.per_minute;
        self.per_minute = per_minute.into();
    }

    /// How long until `amount` can be had, at least a millisecond; `None` when it can be now. More than a minute's
    /// allowance can be had from a full bucket.
    pub fn wait(&mut self, amount: u32, now: Instant) -> Option<Duration> {
        self.fill(now);
        let missing = f64::from(amount).min(self.per_minute) - self.level;
        (missing > NOTHING).then(|| {
            let millis = (missing * MINUTE * 1000.0 / self.per_minute).ceil();
            Duration::from_millis((millis as u64).max(1))
        })
    }

    /// Takes `amount`, whether it is there or not.
    pub fn take(&mut self, amount: u32, now: Instant) {
        self.fill(now);
        self.level -= f64::from(amount);
    }

    fn fill(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.at).as_secs_f64();
        self.level = (self.level + seconds * self.per_minute / MINUTE).min(self.per_minute);
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_minutes_allowance_comes_back_evenly() {
        let start = Instant::now();
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        let mut bucket = Bucket::new(60, start);
        bucket.take(60, start);
        assert_eq!(bucket.wait(1, start), Some(Duration::from_secs(1)));
        assert_eq!(bucket.wait(5, at(2.0)), Some(Duration::from_secs(3)));
        assert_eq!(bucket.wait(2, at(2.0)), None);
        // It never holds more than a minute's, which is also all that anything needs.
        assert_eq!(bucket.wait(1000, at(59.0)), Some(Duration::from_secs(1)));
        assert_eq!(bucket.wait(1000, at(3600.0)), None);
        bucket.take(1000, at(3600.0));
        assert_eq!(bucket.wait(1, at(3600.0)), Some(Duration::from_secs(941)));
    }

    #[test]
    fn a_new_allowance_forgives_nothing() {
        let start = Instant::now();
        let mut bucket = Bucket::new(60, start);
        bucket.take(60, start);
        bucket.set(120, start);
        assert_eq!(bucket.wait(60, start), None);
        assert_eq!(bucket.wait(62, start), Some(Duration::from_secs(1)));
        bucket.set(60, start);
        assert_eq!(bucket.wait(1, start), Some(Duration::from_secs(1)));
    }

    proptest! {
        /// Whoever waits as told is let in, and over any time no more is had than the allowance and one bucket.
        #[test]
        fn waiting_helps_and_the_sum_is_bounded(
            per_minute in 1u32..1_000_000,
            asked in prop::collection::vec((0u64..90_000, 1u32..1_000_000), 1..50),
        ) {
            let start = Instant::now();
            let mut bucket = Bucket::new(per_minute, start);
            let (mut now, mut had) = (start, 0.0);
            for (pause, amount) in asked {
                now += Duration::from_millis(pause);
                if let Some(wait) = bucket.wait(amount, now) {
                    now += wait;
                }
                prop_assert_eq!(bucket.wait(amount, now), None);
                let allowed = f64::from(per_minute) * (1.0 + (now - start).as_secs_f64() / MINUTE);
                prop_assert!(had + f64::from(amount.min(per_minute)) <= allowed + 1.0);
                bucket.take(amount, now);
                had += f64::from(amount);
            }
        }
    }
}
