//! What a mock engine is told at its start: one JSON object.

use std::time::Duration;

use llmrt_link::{ConfigError, LinkTimes, Rule, Topology, read_config};
use llmrt_log::LogConfig;
use serde::Deserialize;

use crate::fault::{FaultError, Faults};
use crate::limits::Limits;
use crate::pattern::Pattern;

/// Configuration of a mock engine. Unknown keys are refused: a misspelt option must not be silently off.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub topology: Topology,
    /// Name that the log calls the model.
    pub model: String,
    pub max_model_len: u32,
    pub vocab_size: u32,
    pub eos_token_ids: Vec<u32>,
    pub max_num_seqs: u32,
    pub max_num_queued_reqs: u32,
    pub pattern: Pattern,
    /// Time of a step; 0 is as fast as the detokenizer takes frames.
    pub step_ms: f64,
    /// Tokens after which an answer ends by itself; 0 is never.
    pub answer_tokens: u32,
    pub cached_tokens: u32,
    /// See [`Faults`].
    pub faults: String,
    pub log: LogConfig,
    pub link: LinkTimes,
}

const PROCESS: &str = "mock engine";

impl Config {
    /// Reads and checks the JSON object.
    pub fn from_json(json: &str) -> Result<Self, ConfigError> {
        let config = read_config(PROCESS, json, Self::rules)?;
        config.faults()?;
        Ok(config)
    }

    fn rules(&self) -> Vec<Rule> {
        let in_vocabulary = |ids: &[u32]| ids.iter().all(|&id| id < self.vocab_size);
        vec![
            (self.vocab_size > 0, "vocab_size", "at least 1"),
            (self.max_model_len > 1, "max_model_len", "at least 2"),
            (self.max_num_seqs > 0, "max_num_seqs", "at least 1"),
            (
                in_vocabulary(&self.eos_token_ids),
                "eos_token_ids",
                "below the vocabulary size",
            ),
            (
                match &self.pattern {
                    Pattern::Tokens { tokens } => !tokens.is_empty() && in_vocabulary(tokens),
                    _ => true,
                },
                "pattern.tokens",
                "at least one token id, all below the vocabulary size",
            ),
            (
                (0.0..=60_000.0).contains(&self.step_ms),
                "step_ms",
                "between 0 and 60000 milliseconds",
            ),
            (
                !self.topology.detokenizer.is_empty(),
                "topology.detokenizer",
                "a list of at least one detokenizer",
            ),
            self.link.rule(),
        ]
    }

    pub(crate) fn faults(&self) -> Result<Faults, ConfigError> {
        (self.faults.parse()).map_err(|error: FaultError| ConfigError::new(PROCESS, error))
    }

    pub(crate) fn step(&self) -> Duration {
        Duration::from_secs_f64(self.step_ms / 1e3)
    }

    /// Requests that may be open at once, and that one entry may have submitted and not yet seen end.
    pub(crate) fn credit(&self) -> u32 {
        self.max_num_seqs.saturating_add(self.max_num_queued_reqs)
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            max_model_len: self.max_model_len,
            vocab_size: self.vocab_size,
            max_num_seqs: self.max_num_seqs as usize,
            max_requests: self.credit() as usize,
            eos_token_ids: self.eos_token_ids.clone(),
            answer_tokens: self.answer_tokens,
            cached_tokens: self.cached_tokens,
            detokenizers: self.topology.detokenizer.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn valid() -> Value {
        json!({
            "topology": {"control": "ipc:///c", "scheduler": {"requests": "ipc:///r"}, "entry": [],
                         "detokenizer": [{"tokens": "ipc:///t"}], "ranks": {}},
            "model": "m", "max_model_len": 100, "vocab_size": 50, "eos_token_ids": [2], "max_num_seqs": 4,
            "max_num_queued_reqs": 8, "pattern": {"kind": "tokens", "tokens": [3, 4]}, "step_ms": 2.5,
            "answer_tokens": 0, "cached_tokens": 0, "faults": "die@7",
            "log": {"format": "text", "level": "info"}, "link": {"heartbeat_s": 1, "silence_s": 60},
        })
    }

    #[test]
    fn a_valid_one_is_read() {
        let config = Config::from_json(&valid().to_string()).expect("a valid configuration");
        assert_eq!(config.step(), Duration::from_micros(2500));
        assert_eq!(config.credit(), 12);
    }

    #[test]
    fn refusals_name_the_option() {
        for (key, value, name) in [
            ("vocab_size", json!(0), "vocab_size"),
            ("max_model_len", json!(1), "max_model_len"),
            ("max_num_seqs", json!(0), "max_num_seqs"),
            ("eos_token_ids", json!([50]), "eos_token_ids"),
            ("step_ms", json!(-1), "step_ms"),
            ("faults", json!("explode"), "explode"),
            (
                "pattern",
                json!({"kind": "tokens", "tokens": []}),
                "pattern.tokens",
            ),
            (
                "pattern",
                json!({"kind": "tokens", "tokens": [50]}),
                "pattern.tokens",
            ),
            ("pattern", json!({"kind": "noise"}), "noise"),
            (
                "link",
                json!({"heartbeat_s": 0, "silence_s": 1}),
                "heartbeat_s",
            ),
            ("stepms", json!(1), "stepms"),
        ] {
            let mut config = valid();
            config[key] = value;
            let message = Config::from_json(&config.to_string())
                .expect_err("refused")
                .to_string();
            assert!(message.contains(name), "{message}");
        }
    }
}
