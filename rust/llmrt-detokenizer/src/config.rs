//! What a detokenizer is told at its start: one JSON object.

use std::path::PathBuf;
use std::time::Duration;

use llmrt_link::LinkOptions;
use serde::Deserialize;

/// Configuration of one detokenizer. Unknown keys are refused: a misspelt option must not be silently off.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Number of this detokenizer in the topology.
    #[serde(default)]
    pub index: u32,
    pub topology: Topology,
    pub tokenizer: TokenizerSource,
    #[serde(default)]
    pub log: LogConfig,
    #[serde(default)]
    pub link: LinkTimes,
}

/// The parts of the topology table that concern a detokenizer.
#[derive(Clone, Debug, Deserialize)]
pub struct Topology {
    /// The supervisor binds.
    pub control: String,
    pub scheduler: SchedulerEndpoints,
    pub entry: Vec<EntryEndpoints>,
    pub detokenizer: Vec<DetokenizerEndpoints>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct SchedulerEndpoints {
    /// The scheduler binds; it is told here which requests a stop string ended.
    pub requests: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct EntryEndpoints {
    /// The entry worker binds.
    pub results: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct DetokenizerEndpoints {
    /// The detokenizer binds, the scheduler connects.
    pub tokens: String,
}

/// Where the tokenizer is read from.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerSource {
    pub kind: TokenizerKind,
    pub path: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenizerKind {
    /// Rebuilt from a GGUF file's metadata.
    Gguf,
    /// A Hugging Face `tokenizer.json`.
    Json,
}

/// Log lines: how they look and which are written.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    pub format: LogFormat,
    /// Least severe level written: `error`, `warn`, `info`, `debug`, `trace`, or a `tracing` filter.
    pub level: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            format: LogFormat::Text,
            level: "info".to_owned(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    Json,
}

/// Liveness of the links.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkTimes {
    /// Seconds between heartbeats.
    pub heartbeat_s: f64,
    /// Seconds without a sign of life after which a peer counts as dead.
    pub silence_s: f64,
}

impl Default for LinkTimes {
    fn default() -> Self {
        Self {
            heartbeat_s: 1.0,
            silence_s: 30.0,
        }
    }
}

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("detokenizer configuration: {0}")]
    Json(#[from] serde_json::Error),
    #[error("detokenizer configuration: {name} must be {rule}")]
    Range {
        name: &'static str,
        rule: &'static str,
    },
}

impl Config {
    /// Reads and checks the JSON object.
    pub fn from_json(json: &str) -> Result<Self, ConfigError> {
        let config: Self = serde_json::from_str(json)?;
        let seconds = |v: f64| v.is_finite() && v > 0.0 && v <= 1e6;
        let workers = 1..=usize::from(llmrt_wire::RequestId::MAX_WORKERS);
        let topology = &config.topology;
        let rules = [
            (
                workers.contains(&topology.entry.len()),
                "topology.entry",
                "a list of 1 to 4096 workers",
            ),
            (
                topology.detokenizer.len() > config.index as usize,
                "index",
                "a position in topology.detokenizer",
            ),
            (
                seconds(config.link.heartbeat_s),
                "link.heartbeat_s",
                "a positive number of seconds",
            ),
            (
                seconds(config.link.silence_s),
                "link.silence_s",
                "a positive number of seconds",
            ),
        ];
        match rules.into_iter().find(|(holds, _, _)| !holds) {
            Some((_, name, rule)) => Err(ConfigError::Range { name, rule }),
            None => Ok(config),
        }
    }
}

impl LinkTimes {
    pub(crate) fn options(&self) -> LinkOptions {
        LinkOptions {
            heartbeat: Duration::from_secs_f64(self.heartbeat_s),
            silence: Duration::from_secs_f64(self.silence_s),
            ..LinkOptions::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(entry: &str, extra: &str) -> String {
        format!(
            r#"{{"topology": {{"control": "ipc:///c", "scheduler": {{"requests": "ipc:///r"}}, "entry": {entry},
                               "detokenizer": [{{"tokens": "ipc:///t"}}], "ranks": {{}}}},
                 "tokenizer": {{"kind": "gguf", "path": "m.gguf"}}{extra}}}"#
        )
    }

    const ONE: &str = r#"[{"results": "ipc:///e"}]"#;

    #[test]
    fn defaults_are_usable() {
        let config = Config::from_json(&json(ONE, "")).expect("a valid configuration");
        assert_eq!((config.index, config.log.level.as_str()), (0, "info"));
        assert_eq!(config.link.options().heartbeat, Duration::from_secs(1));
    }

    #[test]
    fn refusals_name_the_option() {
        for (entry, extra, name) in [
            ("[]", "", "topology.entry"),
            (ONE, r#", "index": 1"#, "index"),
            (ONE, r#", "link": {"heartbeat_s": 0}"#, "link.heartbeat_s"),
            (ONE, r#", "logg": {}"#, "logg"),
        ] {
            let message = Config::from_json(&json(entry, extra))
                .expect_err("refused")
                .to_string();
            assert!(message.contains(name), "{message}");
        }
    }
}
