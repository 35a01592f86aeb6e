//! When requests are due.

use std::time::Duration;

/// Arrival times, from the start of the run, of `count` requests of a Poisson process with `rate` per second; all at
/// zero without a rate. The same seed gives the same times.
#[must_use]
pub fn arrivals(count: usize, rate: Option<f64>, seed: u64) -> Vec<Duration> {
    let Some(rate) = rate else {
        return vec![Duration::ZERO; count];
    };
    // Not the stream of the prompts: arrivals stay the same when the workload changes.
    let mut random = fastrand::Rng::with_seed(seed ^ 0x0041_5252_4956_4500);
    let mut at = 0.0_f64;
    (0..count)
        .map(|_| {
            let due = Duration::try_from_secs_f64(at).unwrap_or(Duration::MAX);
            // 1 - u is in (0, 1]: the logarithm is finite.
            at -= (1.0 - random.f64()).ln() / rate;
            due
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_follow_the_rate_and_the_seed() {
        let times = arrivals(20_001, Some(50.0), 7);
        assert_eq!(times[0], Duration::ZERO);
        assert!(times.is_sorted());
        let mean = times[20_000].as_secs_f64() / 20_000.0;
        assert!((mean * 50.0 - 1.0).abs() < 0.05, "{mean}");
        // Exponential gaps: their standard deviation is their mean.
        let gaps: Vec<f64> = times
            .windows(2)
            .map(|w| (w[1] - w[0]).as_secs_f64())
            .collect();
        let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / 20_000.0;
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.05);
        assert_eq!(times, arrivals(20_001, Some(50.0), 7));
        assert_ne!(times, arrivals(20_001, Some(50.0), 8));
    }

    #[test]
    fn without_a_rate_all_are_due_at_once() {
        assert_eq!(arrivals(3, None, 1), vec![Duration::ZERO; 3]);
    }
}
