//! Counts of the engine, by the names of the metrics they feed.

use llmrt_wire::FinishReason;
use serde::Serialize;

/// The answer to the call `stats`: the same keys as the scheduler's.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stats {
    pub num_requests_running: usize,
    pub num_requests_waiting: usize,
    /// Share of the pages that the running requests would hold.
    pub kv_cache_usage_perc: f64,
    pub prefix_cache_queries_total: u64,
    pub prefix_cache_hits_total: u64,
    pub num_preemptions_total: u64,
    pub prompt_tokens_total: u64,
    pub generation_tokens_total: u64,
    pub requests_stop_total: u64,
    pub requests_length_total: u64,
    pub requests_abort_total: u64,
    pub requests_error_total: u64,
    pub steps_total: u64,
}

impl Stats {
    pub(crate) fn finished(&mut self, reason: FinishReason) {
        *match reason {
            FinishReason::Stop => &mut self.requests_stop_total,
            FinishReason::Length => &mut self.requests_length_total,
            FinishReason::Abort => &mut self.requests_abort_total,
            FinishReason::Error => &mut self.requests_error_total,
        } += 1;
    }
}
