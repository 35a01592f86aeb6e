//! How fast a queue gets shorter.

use std::time::{Duration, Instant};

/// Time over which the rate is taken, seconds: what left earlier counts for little.
const WINDOW: f64 = 10.0;
/// Bounds on what clients are told to wait.
const LEAST: Duration = Duration::from_millis(100);
const MOST: Duration = Duration::from_secs(60);

/// The present rate at which something drains.
#[derive(Clone, Debug, Default)]
pub struct Drain {
    /// First and last look.
    times: Option<(Instant, Instant)>,
    /// What has left, less the longer ago it did.
    amount: f64,
}

impl Drain {
    /// So much has left.
    pub fn add(&mut self, amount: u64, now: Instant) {
        let (first, last) = self.times.unwrap_or((now, now));
        self.amount = self.amount * faded(now - last) + amount as f64;
        self.times = Some((first, now));
    }

    /// What to tell a client that `amount` more must have left for; `None` while no rate is known.
    pub fn wait(&self, amount: u64, now: Instant) -> Option<Duration> {
        let time = self.time(amount, now)?;
        Some(time.clamp(LEAST, MOST))
    }

    /// How long until `amount` more has left at the present rate, a day at most; `None` while nothing is known of it.
    pub fn time(&self, amount: u64, now: Instant) -> Option<Duration> {
        let (first, last) = self.times?;
        if amount == 0 {
            return Some(Duration::ZERO);
        }
        // All of the window has not been seen yet in the beginning.
        let seen = WINDOW * (1.0 - faded(now - first));
        let rate = self.amount * faded(now - last) / seen;
        let seconds = (amount as f64 / rate).clamp(0.0, 86_400.0);
        Some(Duration::from_secs_f64(seconds))
    }
}

fn faded(time: Duration) -> f64 {
    (-time.as_secs_f64() / WINDOW).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_follows_the_rate() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut drain = Drain::default();
        assert_eq!(drain.wait(1, start), None);
        for tick in 0..=200 {
            drain.add(2, at(tick * 100));
        }
        // Twenty a second.
        let seconds = |amount, millis| drain.wait(amount, at(millis)).unwrap().as_secs_f64();
        assert!((4.5..5.5).contains(&seconds(100, 20_000)));
        assert!(seconds(100, 40_000) > 20.0, "it has slowed down");
        assert_eq!(drain.wait(1, at(20_000)), Some(LEAST));
        assert_eq!(drain.wait(1, at(3_600_000)), Some(MOST));
    }

    #[test]
    fn one_moment_is_no_rate_and_a_short_time_is() {
        let start = Instant::now();
        let mut drain = Drain::default();
        drain.add(1, start);
        assert_eq!(drain.wait(5, start), Some(LEAST));
        let later = start + Duration::from_secs(1);
        let wait = drain.wait(5, later).unwrap().as_secs_f64();
        assert!((4.0..6.0).contains(&wait), "{wait}");
    }
}
