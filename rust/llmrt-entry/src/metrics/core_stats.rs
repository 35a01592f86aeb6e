//! What the scheduler counts, as it last told.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::Deserialize;

/// The value of the scheduler's answer to the call `stats`: a JSON object keyed by metric names.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CoreStats {
    pub num_requests_running: u64,
    pub num_requests_waiting: u64,
    /// Share of the KV pages in use, 0 to 1.
    pub kv_cache_usage_perc: f64,
    /// Prompt tokens looked up in the prefix cache, and those found there.
    pub prefix_cache_queries_total: u64,
    pub prefix_cache_hits_total: u64,
    pub num_preemptions_total: u64,
}

/// The scheduler's metric families.
pub struct CoreFamilies {
    running: Gauge,
    waiting: Gauge,
    cache_usage: Gauge<f64, AtomicU64>,
    cache_queries: Counter,
    cache_hits: Counter,
    preemptions: Counter,
}

impl CoreFamilies {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let families = Self {
            running: Gauge::default(),
            waiting: Gauge::default(),
            cache_usage: Gauge::default(),
            cache_queries: Counter::default(),
            cache_hits: Counter::default(),
            preemptions: Counter::default(),
        };
        registry.register(
            "num_requests_running",
            "Requests in the batch",
            families.running.clone(),
        );
        registry.register(
            "num_requests_waiting",
            "Requests in the queue",
            families.waiting.clone(),
        );
        registry.register(
            "kv_cache_usage_perc",
            "Share of the KV pages in use",
            families.cache_usage.clone(),
        );
        let queries = families.cache_queries.clone();
        registry.register(
            "prefix_cache_queries",
            "Prompt tokens looked up in the prefix cache",
            queries,
        );
        registry.register(
            "prefix_cache_hits",
            "Prompt tokens found in the prefix cache",
            families.cache_hits.clone(),
        );
        let preemptions = families.preemptions.clone();
        registry.register(
            "num_preemptions",
            "Requests that lost their pages and started again",
            preemptions,
        );
        families
    }

    /// Shows `stats` from now on. A restarted scheduler counts from zero, which is what a counter's reader expects.
    pub fn set(&self, stats: &CoreStats) {
        self.running
            .set(i64::try_from(stats.num_requests_running).unwrap_or(i64::MAX));
        self.waiting
            .set(i64::try_from(stats.num_requests_waiting).unwrap_or(i64::MAX));
        self.cache_usage.set(stats.kv_cache_usage_perc);
        self.cache_queries
            .inner()
            .store(stats.prefix_cache_queries_total, Relaxed);
        self.cache_hits
            .inner()
            .store(stats.prefix_cache_hits_total, Relaxed);
        self.preemptions
            .inner()
            .store(stats.num_preemptions_total, Relaxed);
    }
}
