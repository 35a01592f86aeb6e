//! Metric families of an entry worker, under the names that dashboards know.

mod core_stats;
pub mod exposition;
mod histogram;

use std::time::Duration;

use llmrt_wire::FinishReason;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use serde::{Deserialize, Serialize};

pub use core_stats::{CoreFamilies, CoreStats};
pub use histogram::Histogram;

type Labelled = Family<[(&'static str, &'static str); 1], Counter>;

/// Bounds for times within one request's life, microseconds.
const LATENCY_US: &[u64] = &[
    1_000,
    5_000,
    10_000,
    20_000,
    40_000,
    60_000,
    80_000,
    100_000,
    250_000,
    500_000,
    750_000,
    1_000_000,
    2_500_000,
    5_000_000,
    7_500_000,
    10_000_000,
    20_000_000,
    40_000_000,
    80_000_000,
    160_000_000,
    640_000_000,
];
/// Bounds for the time between two tokens, microseconds.
const TOKEN_US: &[u64] = &[
    1_000, 2_500, 5_000, 10_000, 15_000, 25_000, 50_000, 75_000, 100_000, 150_000, 200_000,
    300_000, 400_000, 500_000, 750_000, 1_000_000, 2_500_000, 5_000_000,
];

/// Why a request was refused before it was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rejection {
    /// All permits are taken.
    Permits,
    /// The scheduler gave no credit.
    Credit,
    /// A limit of the request's key.
    Key,
    /// Too many prompt tokens wait.
    QueuedTokens,
    /// The bodies of other requests take all room.
    Bodies,
    /// The core is starting or dead.
    CoreDown,
    /// The worker drains.
    Draining,
}

impl Rejection {
    fn label(self) -> &'static str {
        match self {
            Self::Permits => "permits",
            Self::Credit => "credit",
            Self::Key => "key",
            Self::QueuedTokens => "queued_tokens",
            Self::Bodies => "bodies",
            Self::CoreDown => "core_down",
            Self::Draining => "draining",
        }
    }
}

/// All families of the worker, and apart from them the scheduler's, which are the same for all workers.
pub struct Metrics {
    registry: Registry,
    core_registry: Registry,
    pub prompt_tokens: Counter,
    pub generation_tokens: Counter,
    requests: Labelled,
    rejections: Labelled,
    pub time_to_first_token: Histogram,
    pub inter_token_latency: Histogram,
    pub e2e_request_latency: Histogram,
    pub request_queue_time: Histogram,
    pub request_prefill_time: Histogram,
    pub request_decode_time: Histogram,
    pub core: CoreFamilies,
}

impl Metrics {
    /// Families with the label `model_name`.
    pub fn new(model: &str) -> Self {
        let labels = [("model_name".into(), escaped(model).into())];
        let new = || Registry::with_prefix_and_labels("llmrt", labels.clone().into_iter());
        let (mut registry, mut core_registry) = (new(), new());
        let mut histogram = |name: &str, help: &str, bounds| {
            let histogram = Histogram::new(bounds);
            registry.register(name, help, histogram.clone());
            histogram
        };
        let time_to_first_token = histogram(
            "time_to_first_token_seconds",
            "Arrival to first token",
            LATENCY_US,
        );
        let inter_token_latency =
            histogram("inter_token_latency_seconds", "Token to token", TOKEN_US);
        let e2e_request_latency =
            histogram("e2e_request_latency_seconds", "Arrival to end", LATENCY_US);
        let request_queue_time = histogram(
            "request_queue_time_seconds",
            "Scheduler's queue until first scheduled",
            LATENCY_US,
        );
        let request_prefill_time = histogram(
            "request_prefill_time_seconds",
            "First scheduled to first token",
            LATENCY_US,
        );
        let request_decode_time = histogram(
            "request_decode_time_seconds",
            "First token to end",
            LATENCY_US,
        );
        let (prompt_tokens, generation_tokens) = (Counter::default(), Counter::default());
        let (requests, rejections) = (Labelled::default(), Labelled::default());
        registry.register(
            "prompt_tokens",
            "Prompt tokens submitted",
            prompt_tokens.clone(),
        );
        registry.register(
            "generation_tokens",
            "Tokens generated",
            generation_tokens.clone(),
        );
        registry.register(
            "request_success",
            "Requests that ended, by reason",
            requests.clone(),
        );
        registry.register(
            "admission_rejections",
            "Requests refused, by reason",
            rejections.clone(),
        );
        let core = CoreFamilies::register(&mut core_registry);
        Self {
            registry,
            core_registry,
            prompt_tokens,
            generation_tokens,
            requests,
            rejections,
            time_to_first_token,
            inter_token_latency,
            e2e_request_latency,
            request_queue_time,
            request_prefill_time,
            request_decode_time,
            core,
        }
    }

    /// Counts an ended request.
    pub fn ended(&self, reason: FinishReason) {
        let label = match reason {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Abort => "abort",
            FinishReason::Error => "error",
        };
        self.requests
            .get_or_create(&[("finished_reason", label)])
            .inc();
    }

    /// Counts a refused request.
    pub fn rejected(&self, why: Rejection) {
        self.rejections
            .get_or_create(&[("reason", why.label())])
            .inc();
    }

    /// Times that the scheduler measured.
    pub fn scheduled(&self, queue_us: u64, prefill_us: u64) {
        self.request_queue_time
            .observe(Duration::from_micros(queue_us));
        self.request_prefill_time
            .observe(Duration::from_micros(prefill_us));
    }

    /// The worker's families in OpenMetrics text form.
    pub fn render(&self) -> String {
        encode(&self.registry)
    }

    /// The scheduler's families in OpenMetrics text form.
    pub fn render_core(&self) -> String {
        encode(&self.core_registry)
    }
}

fn encode(registry: &Registry) -> String {
    let mut text = String::with_capacity(16 << 10);
    // Writing into a String has no way to fail.
    let _ = text::encode(&mut text, registry);
    text
}

/// A label's value as OpenMetrics wants it between quotes; the registry writes it as it is.
fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for character in value.chars() {
        match character {
            '\\' => text.push_str(r"\\"),
            '"' => text.push_str(r#"\""#),
            '\n' => text.push_str(r"\n"),
            other => text.push(other),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Value of the label `model_name` in a line of OpenMetrics text.
    fn model_name(line: &str) -> Option<String> {
        let (_, labels) = line.split_once(r#"{model_name=""#)?;
        let mut characters = labels.chars();
        let mut value = String::new();
        loop {
            match characters.next()? {
                '"' => {
                    return characters
                        .next()
                        .filter(|c| "},".contains(*c))
                        .map(|_| value);
                }
                '\\' => value.push(match characters.next()? {
                    'n' => '\n',
                    same @ ('"' | '\\') => same,
                    _ => return None,
                }),
                other => value.push(other),
            }
        }
    }

    proptest! {
        #[test]
        fn any_model_name_can_be_read_back(name in r#"[a-z"\\\\\n\r{},= é]{1,12}"#) {
            let metrics = Metrics::new(&name);
            metrics.ended(FinishReason::Stop);
            for line in metrics.render().split('\n').filter(|line| !line.starts_with('#') && !line.is_empty()) {
                prop_assert_eq!(model_name(line), Some(name.clone()), "{}", line);
            }
        }
    }

    #[test]
    fn families_carry_prefix_and_model() {
        let metrics = Metrics::new("m");
        metrics.ended(FinishReason::Length);
        metrics.rejected(Rejection::Permits);
        metrics.prompt_tokens.inc_by(7);
        metrics.core.set(&CoreStats {
            num_requests_running: 3,
            prefix_cache_hits_total: 5,
            ..CoreStats::default()
        });
        let text = metrics.render() + &metrics.render_core();
        for line in [
            r#"llmrt_prompt_tokens_total{model_name="m"} 7"#,
            r#"llmrt_num_requests_running{model_name="m"} 3"#,
            r#"llmrt_prefix_cache_hits_total{model_name="m"} 5"#,
            r#"llmrt_request_success_total{model_name="m",finished_reason="length"} 1"#,
            r#"llmrt_admission_rejections_total{model_name="m",reason="permits"} 1"#,
            r#"llmrt_time_to_first_token_seconds_count{model_name="m"} 0"#,
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }
}
