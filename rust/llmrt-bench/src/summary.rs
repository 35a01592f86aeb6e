//! From measurements to the report.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::config::BenchConfig;
use crate::phase::{Cut, State};
use crate::process::{self, Sample};
use crate::report::{self, Distribution, Report, Timeline, Use};

/// The outer measures of a run.
pub struct Finished {
    pub requests: usize,
    pub duration: Duration,
    pub cut: Option<Cut>,
    pub connections: usize,
    /// CPU time of this process.
    pub own_cpu: Duration,
    pub before: BTreeMap<u32, Sample>,
    pub after: BTreeMap<u32, Sample>,
}

/// Puts the report together.
#[must_use]
#[allow(clippy::cast_precision_loss)]
pub fn summary(config: &BenchConfig, model: String, state: &State, finished: &Finished) -> Report {
    let recorder = state.recorder.borrow();
    let seconds = finished.duration.as_secs_f64();
    let rate = |count: u64| count as f64 / seconds;
    let all_have_usage = recorder.with_usage == recorder.completed;
    let prompt_tokens = all_have_usage.then_some(recorder.prompt_tokens);
    let tokens = recorder.output_tokens + recorder.chunks - recorder.completed_chunks;
    let used = |cpu, rss| Use::new(cpu, rss, tokens, recorder.completed);
    let processes = report::process_uses(&finished.before, &finished.after);
    let cpu: Option<f64> = processes.iter().map(|process| process.cpu_s).sum();
    let rss: u64 = finished.after.values().map(|sample| sample.rss_kib).sum();
    let own_rss = process::sample(&[std::process::id()], false)
        .map_or(0, |own| own.values().map(|sample| sample.rss_kib).sum());
    Report {
        base_url: config.base_url.clone(),
        endpoint: config.endpoint.path(),
        protocol: if config.http2 { "HTTP/2" } else { "HTTP/1.1" },
        model,
        connections: finished.connections,
        peak_concurrency: state.peak.get(),
        duration_s: seconds,
        cut: finished.cut.map(|cut| match cut {
            Cut::Timeout => "timeout",
            Cut::Interrupted => "interrupted",
        }),
        requests: finished.requests,
        completed: recorder.completed,
        failed: recorder.failed,
        unfinished: state.sent.get() - recorder.completed - recorder.failed,
        not_sent: finished.requests as u64 - state.sent.get(),
        failures: report::failures(&recorder),
        token_source: match recorder.with_usage {
            0 => "chunks",
            _ if all_have_usage => "usage",
            _ => "mixed",
        },
        prompt_tokens,
        output_tokens: recorder.output_tokens,
        chunks: recorder.chunks,
        request_throughput: rate(recorder.completed),
        output_throughput: rate(recorder.output_tokens),
        total_throughput: prompt_tokens.map(|prompt| rate(prompt + recorder.output_tokens)),
        goodput: config.goodput.map(|_| rate(recorder.good)),
        ttft: Distribution::of(&recorder.ttft),
        tpot: Distribution::of(&recorder.tpot),
        itl: Distribution::of(&recorder.itl),
        e2e: Distribution::of(&recorder.e2e),
        send_lag: config
            .request_rate
            .map(|_| Distribution::of(&recorder.send_lag)),
        server: cpu
            .filter(|_| !processes.is_empty())
            .map(|cpu| used(Duration::from_secs_f64(cpu), rss)),
        processes,
        client: used(finished.own_cpu, own_rss),
        timeline: Timeline {
            interval_s: recorder.timeline.interval.as_secs_f64(),
            chunks: recorder.timeline.bins.clone(),
        },
    }
}
