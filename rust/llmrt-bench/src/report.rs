//! What a run found, as it goes out in JSON. Times are milliseconds unless a name says otherwise.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::process::Sample;
use crate::record::Recorder;

/// Result of a run. Rates are per second of `duration_s`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub base_url: String,
    pub endpoint: &'static str,
    pub protocol: &'static str,
    pub model: String,
    pub connections: usize,
    pub peak_concurrency: usize,
    /// From the first request to the end of the last, or to the cut.
    pub duration_s: f64,
    /// `timeout` or `interrupted` if the run was cut.
    pub cut: Option<&'static str>,
    pub requests: usize,
    pub completed: u64,
    pub failed: u64,
    /// Sent, and not answered when the run was cut.
    pub unfinished: u64,
    pub not_sent: u64,
    pub failures: Vec<Failure>,
    /// `usage`, `chunks` or `mixed`: where `output_tokens` come from.
    pub token_source: &'static str,
    /// Of completed requests, by usage; `null` if a completed request had none.
    pub prompt_tokens: Option<u64>,
    /// Of completed requests.
    pub output_tokens: u64,
    /// Chunks with text of all requests.
    pub chunks: u64,
    pub request_throughput: f64,
    pub output_throughput: f64,
    pub total_throughput: Option<f64>,
    /// Requests per second that kept the limits.
    pub goodput: Option<f64>,
    pub ttft: Distribution,
    pub tpot: Distribution,
    pub itl: Distribution,
    pub e2e: Distribution,
    /// How late requests were sent; only with a request rate.
    pub send_lag: Option<Distribution>,
    pub processes: Vec<ProcessUse>,
    /// All of `processes`; `null` if there are none or one ended.
    pub server: Option<Use>,
    pub client: Use,
    pub timeline: Timeline,
}

/// Failures of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// A status code, `connect`, `early_close`, `error_event` or `garbage`.
    pub kind: String,
    pub count: u64,
    /// Of the first.
    pub message: String,
}

/// Percentiles, to three digits; all `null` without samples.
#[derive(Clone, Debug, Serialize)]
pub struct Distribution {
    pub count: u64,
    pub mean: Option<f64>,
    pub std: Option<f64>,
    pub min: Option<f64>,
    pub p50: Option<f64>,
    pub p90: Option<f64>,
    pub p95: Option<f64>,
    pub p99: Option<f64>,
    pub max: Option<f64>,
    /// Pairs of a time and the samples at it, ascending.
    pub histogram: Vec<(f64, u64)>,
}

/// CPU time and memory of one process.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessUse {
    pub pid: u32,
    pub name: String,
    /// `null` if the process ended during the run.
    pub cpu_s: Option<f64>,
    pub rss_before_mib: Option<f64>,
    pub rss_after_mib: Option<f64>,
    /// Most since the process started.
    pub rss_peak_mib: Option<f64>,
}

/// CPU time, and what it is per token and request. Tokens are the output tokens plus the chunks of requests that
/// did not complete.
#[derive(Clone, Debug, Serialize)]
pub struct Use {
    pub cpu_s: f64,
    pub cpu_us_per_output_token: Option<f64>,
    pub cpu_us_per_request: Option<f64>,
    /// Resident after the run; shared pages count once per process.
    pub rss_mib: f64,
}

/// Chunks with text per interval.
#[derive(Clone, Debug, Serialize)]
pub struct Timeline {
    pub interval_s: f64,
    pub chunks: Vec<u64>,
}

impl Distribution {
    /// From a histogram of microseconds.
    #[must_use]
    #[allow(clippy::cast_precision_loss)]
    pub fn of(histogram: &Histogram<u64>) -> Self {
        let ms = |us: u64| us as f64 / 1e3;
        let some = (!histogram.is_empty()).then_some(histogram);
        let at = |quantile: f64| some.map(|h| ms(h.value_at_quantile(quantile)));
        Self {
            count: histogram.len(),
            mean: some.map(|h| h.mean() / 1e3),
            std: some.map(|h| h.stdev() / 1e3),
            min: some.map(|h| ms(h.min())),
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            max: some.map(|h| ms(h.max())),
            histogram: histogram
                .iter_recorded()
                .map(|v| (ms(v.value_iterated_to()), v.count_at_value()))
                .collect(),
        }
    }
}

impl Use {
    /// `tokens` and `requests` are what the time was spent on.
    #[must_use]
    #[allow(clippy::cast_precision_loss)]
    pub fn new(cpu: Duration, rss_kib: u64, tokens: u64, requests: u64) -> Self {
        let micros = cpu.as_secs_f64() * 1e6;
        let per = |count: u64| (count > 0).then(|| micros / count as f64);
        Self {
            cpu_s: cpu.as_secs_f64(),
            cpu_us_per_output_token: per(tokens),
            cpu_us_per_request: per(requests),
            rss_mib: mib(rss_kib),
        }
    }
}

/// What each process used between two samples. One that came in between counts from its start.
#[must_use]
pub fn process_uses(
    before: &BTreeMap<u32, Sample>,
    after: &BTreeMap<u32, Sample>,
) -> Vec<ProcessUse> {
    let ended = before.iter().filter_map(|(&pid, old)| {
        let is_same = |new: &&Sample| new.started == old.started;
        after
            .get(&pid)
            .filter(is_same)
            .is_none()
            .then(|| ProcessUse {
                pid,
                name: old.name.clone(),
                cpu_s: None,
                rss_before_mib: Some(mib(old.rss_kib)),
                rss_after_mib: None,
                rss_peak_mib: None,
            })
    });
    let living = after.iter().map(|(&pid, new)| {
        let old = before.get(&pid).filter(|old| old.started == new.started);
        let spent = new
            .cpu
            .saturating_sub(old.map_or(Duration::ZERO, |old| old.cpu));
        ProcessUse {
            pid,
            name: new.name.clone(),
            cpu_s: Some(spent.as_secs_f64()),
            rss_before_mib: old.map(|old| mib(old.rss_kib)),
            rss_after_mib: Some(mib(new.rss_kib)),
            rss_peak_mib: Some(mib(new.peak_kib)),
        }
    });
    let mut all: Vec<ProcessUse> = ended.chain(living).collect();
    all.sort_by_key(|process| process.pid);
    all
}

/// The failures, most frequent first.
#[must_use]
pub fn failures(recorder: &Recorder) -> Vec<Failure> {
    let mut all: Vec<Failure> = recorder
        .failures
        .iter()
        .map(|(kind, (count, message))| Failure {
            kind: kind.clone(),
            count: *count,
            message: message.clone(),
        })
        .collect();
    all.sort_by_key(|failure| std::cmp::Reverse(failure.count));
    all
}

#[allow(clippy::cast_precision_loss)]
fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(started: u64, cpu_ms: u64) -> Sample {
        Sample {
            name: "x".into(),
            parent: 1,
            started,
            cpu: Duration::from_millis(cpu_ms),
            rss_kib: 2048,
            peak_kib: 4096,
        }
    }

    #[test]
    fn percentiles_are_in_milliseconds() {
        let mut histogram = Histogram::new_with_bounds(1, 1_000_000, 3).unwrap();
        for us in 1..=100 {
            histogram.record(us * 1000).unwrap();
        }
        let found = Distribution::of(&histogram);
        let near = |value: Option<f64>, wanted: f64| (value.unwrap() / wanted - 1.0).abs() < 0.002;
        assert!(near(found.p50, 50.0) && near(found.p90, 90.0) && near(found.p99, 99.0));
        assert!(near(found.min, 1.0) && near(found.max, 100.0) && near(found.mean, 50.5));
        assert_eq!((found.count, found.histogram.len()), (100, 100));
        let empty = Distribution::of(&Histogram::new(3).unwrap());
        assert_eq!(
            (empty.count, empty.p50, empty.mean, empty.max),
            (0, None, None, None)
        );
    }

    #[test]
    fn processes_are_told_apart_by_their_start() {
        let before = BTreeMap::from([
            (1, sample(10, 100)),
            (2, sample(10, 100)),
            (3, sample(10, 100)),
        ]);
        let after = BTreeMap::from([
            (1, sample(10, 150)),
            (2, sample(99, 30)),
            (4, sample(50, 20)),
        ]);
        let uses = process_uses(&before, &after);
        let times: Vec<(u32, Option<f64>)> = uses.iter().map(|u| (u.pid, u.cpu_s)).collect();
        assert_eq!(
            times,
            [
                (1, Some(0.05)),
                (2, None),
                (2, Some(0.03)),
                (3, None),
                (4, Some(0.02))
            ]
        );
        assert_eq!(
            (uses[0].rss_after_mib, uses[0].rss_peak_mib),
            (Some(2.0), Some(4.0))
        );
    }

    #[test]
    fn nothing_is_divided_by_zero() {
        let usage = Use::new(Duration::from_secs(1), 0, 0, 4);
        assert_eq!(
            (usage.cpu_us_per_output_token, usage.cpu_us_per_request),
            (None, Some(250_000.0))
        );
    }
}
