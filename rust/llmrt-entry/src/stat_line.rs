//! A line about the last seconds, while there is work.

use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::shard::Shard;

/// Writes a line per interval. Sleeps without a timer while nothing is asked for.
pub async fn write(shard: Rc<Shard>) {
    let seconds = shard.config.stat_interval_s;
    if seconds <= 0.0 {
        return;
    }
    loop {
        shard.router.busy().await;
        let mut last = Totals::of(&shard);
        loop {
            tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
            let now = Totals::of(&shard);
            if now.same_as(&last) && shard.router.open_requests() == 0 {
                break;
            }
            line(&shard, &last, &now).await;
            last = now;
        }
    }
}

struct Totals {
    at: Instant,
    prompt: u64,
    generated: u64,
    writes: u64,
}

impl Totals {
    fn of(shard: &Shard) -> Self {
        let metrics = &shard.metrics;
        let (prompt, generated) = (metrics.prompt_tokens.get(), metrics.generation_tokens.get());
        Self {
            at: Instant::now(),
            prompt,
            generated,
            writes: shard.connections.writes(),
        }
    }

    fn same_as(&self, other: &Self) -> bool {
        self.prompt == other.prompt && self.generated == other.generated
    }
}

async fn line(shard: &Shard, last: &Totals, now: &Totals) {
    let core = shard.core.stats().await;
    let seconds = (now.at - last.at).as_secs_f64();
    let rate = |now: u64, last: u64| (now - last) as f64 / seconds;
    let hits = core.prefix_cache_hits_total as f64 / core.prefix_cache_queries_total.max(1) as f64;
    tracing::info!(
        prompt_tokens_per_s = format_args!("{:.1}", rate(now.prompt, last.prompt)),
        generation_tokens_per_s = format_args!("{:.1}", rate(now.generated, last.generated)),
        writes_per_s = format_args!("{:.1}", rate(now.writes, last.writes)),
        admitted = shard.gate.permits_taken(),
        running = core.num_requests_running,
        waiting = core.num_requests_waiting,
        kv_cache_usage = format_args!("{:.1}%", core.kv_cache_usage_perc * 100.0),
        prefix_cache_hits = format_args!("{:.1}%", hits * 100.0),
        connections = shard.connections.open(),
        "stats"
    );
}
