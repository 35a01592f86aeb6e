//! Sums of what several workers show, in OpenMetrics text form.
//!
//! Everything that a worker counts can be added up: counters, gauges of what is open, buckets of histograms.

use std::fmt::Write;

/// End of a text.
const EOF: &str = "# EOF\n";
/// What all names begin with, and what names of one worker's metrics do.
const PREFIX: &str = "llmrt_";
const WORKER_PREFIX: &str = "llmrt_worker_";

/// Adds up the metrics of several texts. With `counters_only`, gauges are left out: they ended with their worker.
pub fn add<'t>(texts: impl IntoIterator<Item = &'t str>, counters_only: bool) -> String {
    let mut sum = Families::default();
    for text in texts {
        sum.add(text);
    }
    if counters_only {
        sum.0.retain(|family| family.kind != "gauge");
    }
    let mut text = String::new();
    for family in &sum.0 {
        family.write(&mut text);
    }
    text.push_str(EOF);
    text
}

/// What all workers show: the sums under the names of the metrics, and each worker's counters and gauges under names
/// that begin with `llmrt_worker_`, by the label `worker`. So a sum over the labels of one name is never twice too much.
///
/// The text is not closed by `# EOF`: more may follow.
pub fn merge(workers: &[(u16, &str)]) -> String {
    let mut text = add(workers.iter().map(|(_, text)| *text), false);
    text.truncate(text.len() - EOF.len());
    let mut labelled = Families::default();
    for (worker, own) in workers {
        let mut families = Families::default();
        families.add(own);
        for family in families.0 {
            if family.kind != "histogram" {
                labelled.join(family.of_worker(*worker));
            }
        }
    }
    for family in &labelled.0 {
        family.write(&mut text);
    }
    text
}

/// Metric families in the order in which they were met.
#[derive(Default)]
struct Families(Vec<Family>);

struct Family {
    name: String,
    kind: String,
    /// Comment lines.
    head: String,
    samples: Vec<(String, Number)>,
}

/// Counts stay whole: a float would lose those above 2^53.
#[derive(Clone, Copy)]
enum Number {
    Whole(u64),
    Real(f64),
}

impl Families {
    fn add(&mut self, text: &str) {
        let mut families: Vec<Family> = Vec::new();
        for line in text.lines() {
            if let Some(comment) = line.strip_prefix("# ") {
                let mut words = comment.splitn(3, ' ');
                let (Some(word), Some(name)) = (words.next(), words.next()) else {
                    continue;
                };
                if families.last().is_none_or(|family| family.name != name) {
                    families.push(Family::new(name));
                }
                let family = families.last_mut().expect("one was pushed");
                family.head.push_str(line);
                family.head.push('\n');
                if word == "TYPE" {
                    family.kind = words.next().unwrap_or_default().to_owned();
                }
            } else if let (Some((key, value)), Some(family)) =
                (line.rsplit_once(' '), families.last_mut())
            {
                // The writer is our own: what is no number is not there.
                if let Some(number) = Number::read(value) {
                    family.samples.push((key.to_owned(), number));
                }
            }
        }
        for family in families {
            self.join(family);
        }
    }

    fn join(&mut self, family: Family) {
        let known = self.0.iter_mut().find(|known| known.name == family.name);
        let Some(known) = known else {
            return self.0.push(family);
        };
        for (key, number) in family.samples {
            match known.samples.iter_mut().find(|(other, _)| *other == key) {
                Some((_, sum)) => *sum = sum.plus(number),
                None => known.samples.push((key, number)),
            }
        }
    }
}

impl Family {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            kind: String::new(),
            head: String::new(),
            samples: Vec::new(),
        }
    }

    fn of_worker(self, worker: u16) -> Self {
        let rename = |text: &str| text.replacen(PREFIX, WORKER_PREFIX, 1);
        let label = |key: &str| match key.strip_suffix('}') {
            Some(labels) => format!("{labels},worker=\"{worker}\"}}"),
            None => format!("{key}{{worker=\"{worker}\"}}"),
        };
        Self {
            name: rename(&self.name),
            head: self.head.lines().map(|line| rename(line) + "\n").collect(),
            samples: self
                .samples
                .into_iter()
                .map(|(key, number)| (label(&rename(&key)), number))
                .collect(),
            kind: self.kind,
        }
    }

    fn write(&self, text: &mut String) {
        text.push_str(&self.head);
        for (key, number) in &self.samples {
            // Writing into a String has no way to fail.
            let _ = match number {
                Number::Whole(value) => writeln!(text, "{key} {value}"),
                Number::Real(value) => writeln!(text, "{key} {value:?}"),
            };
        }
    }
}

impl Number {
    fn read(text: &str) -> Option<Self> {
        let whole = text.parse().ok().map(Self::Whole);
        whole.or_else(|| text.parse().ok().map(Self::Real))
    }

    fn plus(self, other: Self) -> Self {
        match (self, other) {
            (Self::Whole(one), Self::Whole(two)) => Self::Whole(one.saturating_add(two)),
            _ => Self::Real(self.real() + other.real()),
        }
    }

    fn real(self) -> f64 {
        match self {
            Self::Whole(value) => value as f64,
            Self::Real(value) => value,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use llmrt_wire::FinishReason;

    use super::*;
    use crate::metrics::Metrics;

    fn worker(tokens: u64, reasons: &[FinishReason], first_token_ms: u64) -> String {
        let metrics = Metrics::new("a {\"b\"} c");
        metrics.generation_tokens.inc_by(tokens);
        for reason in reasons {
            metrics.ended(*reason);
        }
        let first_token = Duration::from_millis(first_token_ms);
        metrics.time_to_first_token.observe(first_token);
        metrics.render()
    }

    fn sample<'t>(text: &'t str, beginning: &str) -> Vec<&'t str> {
        text.lines()
            .filter(|line| line.starts_with(beginning))
            .collect()
    }

    #[test]
    fn one_worker_alone_is_its_own_sum() {
        let text = worker(3, &[FinishReason::Stop], 2);
        assert_eq!(add([text.as_str()], false), text);
    }

    #[test]
    fn sums_and_workers_stand_under_different_names() {
        let one = worker(1 << 60, &[FinishReason::Stop, FinishReason::Length], 2);
        let two = worker(7, &[FinishReason::Stop, FinishReason::Abort], 30);
        let text = merge(&[(0, &one), (2, &two)]);
        let model = r#"model_name="a {\"b\"} c""#;
        let tokens = |name: &str, labels: &str| format!("{name}_total{{{model}{labels}}}");
        for line in [
            format!(
                "{} {}",
                tokens("llmrt_generation_tokens", ""),
                (1u64 << 60) + 7
            ),
            format!(
                "{} {}",
                tokens("llmrt_worker_generation_tokens", ",worker=\"0\""),
                1u64 << 60
            ),
            format!(
                "{} 7",
                tokens("llmrt_worker_generation_tokens", ",worker=\"2\"")
            ),
            format!(
                "{} 2",
                tokens("llmrt_request_success", ",finished_reason=\"stop\"")
            ),
            format!(
                "{} 1",
                tokens("llmrt_request_success", ",finished_reason=\"abort\"")
            ),
            format!("llmrt_time_to_first_token_seconds_count{{{model}}} 2"),
            format!("llmrt_time_to_first_token_seconds_sum{{{model}}} 0.032"),
            "# TYPE llmrt_worker_generation_tokens counter".to_owned(),
        ] {
            assert_eq!(sample(&text, &line), [line.as_str()], "\n{text}");
        }
        assert!(!text.contains("llmrt_worker_time_to_first_token"), "{text}");
        assert!(!text.contains("EOF"));
    }

    #[test]
    fn what_is_left_of_a_dead_worker_has_no_gauges() {
        let text = "# HELP llmrt_a A.\n# TYPE llmrt_a gauge\nllmrt_a 1\n\
                    # HELP llmrt_b B.\n# TYPE llmrt_b counter\nllmrt_b_total 2\n# EOF\n";
        let left = add([text, text], true);
        assert_eq!(
            left,
            "# HELP llmrt_b B.\n# TYPE llmrt_b counter\nllmrt_b_total 4\n# EOF\n"
        );
    }
}
