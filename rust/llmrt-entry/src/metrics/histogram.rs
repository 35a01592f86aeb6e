//! Distributions of durations without locks.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// A histogram of durations. Observing is one search in a few bounds and two atomic additions: it happens per token.
#[derive(Clone, Debug)]
pub struct Histogram(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Upper bounds of all buckets but the last, microseconds, ascending.
    bounds_us: &'static [u64],
    buckets: Box<[AtomicU64]>,
    sum_us: AtomicU64,
}

impl Histogram {
    /// `bounds_us`: upper bounds of the buckets, microseconds, ascending; one bucket more takes what is above.
    pub fn new(bounds_us: &'static [u64]) -> Self {
        let buckets = (0..=bounds_us.len()).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(Inner {
            bounds_us,
            buckets,
            sum_us: AtomicU64::new(0),
        }))
    }

    /// Counts one duration.
    pub fn observe(&self, duration: Duration) {
        self.observe_each(duration, 1);
    }

    /// Counts `times` durations of one length.
    pub fn observe_each(&self, duration: Duration, times: u32) {
        let inner = &*self.0;
        let us = duration.as_micros() as u64;
        let bucket = inner.bounds_us.partition_point(|bound| *bound < us);
        inner.buckets[bucket].fetch_add(u64::from(times), Relaxed);
        inner.sum_us.fetch_add(us * u64::from(times), Relaxed);
    }
}

impl TypedMetric for Histogram {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder) -> fmt::Result {
        let inner = &*self.0;
        let bounds = inner
            .bounds_us
            .iter()
            .map(|us| *us as f64 / 1e6)
            .chain([f64::MAX]);
        let buckets: Vec<(f64, u64)> = bounds
            .zip(inner.buckets.iter().map(|count| count.load(Relaxed)))
            .collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = inner.sum_us.load(Relaxed) as f64 / 1e6;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::registry::Registry;

    #[test]
    fn buckets_hold_what_is_at_most_their_bound() {
        let histogram = Histogram::new(&[1_000, 10_000]);
        histogram.observe(Duration::from_millis(1));
        histogram.observe_each(Duration::from_millis(2), 3);
        histogram.observe(Duration::from_secs(1));
        let mut registry = Registry::default();
        registry.register("h", "A histogram", histogram);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "h_sum 1.007",
            "h_count 5",
            r#"h_bucket{le="0.001"} 1"#,
            r#"h_bucket{le="0.01"} 4"#,
            r#"h_bucket{le="+Inf"} 5"#,
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }
}
