//! What processes are told at their start: how each reads its JSON configuration, and what all find in it.

use std::fmt::Display;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::options::LinkOptions;

/// Why the configuration of a process was refused.
#[derive(Debug, thiserror::Error)]
#[error("{process} configuration: {reason}")]
pub struct ConfigError {
    process: &'static str,
    reason: String,
}

impl ConfigError {
    /// The configuration of `process` was refused for `reason`.
    pub fn new(process: &'static str, reason: impl Display) -> Self {
        Self {
            process,
            reason: reason.to_string(),
        }
    }

    /// The option `name` of `process` is not `rule`.
    pub fn rule(process: &'static str, name: &str, rule: &str) -> Self {
        Self::new(process, format_args!("{name} must be {rule}"))
    }
}

/// Whether it holds, the option that it is about, and what that must be.
pub type Rule = (bool, &'static str, &'static str);

/// Reads the configuration of `process`, one JSON object, and holds it against its rules.
pub fn read_config<C: DeserializeOwned>(
    process: &'static str,
    json: &str,
    rules: impl FnOnce(&C) -> Vec<Rule>,
) -> Result<C, ConfigError> {
    let config = serde_json::from_str(json).map_err(|error| ConfigError::new(process, error))?;
    match rules(&config).into_iter().find(|(holds, _, _)| !holds) {
        Some((_, name, rule)) => Err(ConfigError::rule(process, name, rule)),
        None => Ok(config),
    }
}

/// Liveness of the links, seconds.
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

impl LinkTimes {
    /// That both are times that a clock can measure.
    pub fn rule(&self) -> Rule {
        let sound = [self.heartbeat_s, self.silence_s]
            .iter()
            .all(|s| s.is_finite() && *s > 0.0 && *s <= 1e6);
        (
            sound,
            "link.heartbeat_s and link.silence_s",
            "positive numbers of seconds",
        )
    }

    /// Link options with these times; they must be sound.
    pub fn options(&self) -> LinkOptions {
        LinkOptions {
            heartbeat: Duration::from_secs_f64(self.heartbeat_s),
            silence: Duration::from_secs_f64(self.silence_s),
            ..LinkOptions::default()
        }
    }
}

/// The table of endpoints that the supervisor builds; `python/llmrt/topology.py` says who binds and who connects.
#[derive(Clone, Debug, Deserialize)]
pub struct Topology {
    pub control: String,
    pub scheduler: SchedulerEndpoints,
    pub entry: Vec<EntryEndpoints>,
    pub detokenizer: Vec<DetokenizerEndpoints>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct SchedulerEndpoints {
    pub requests: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct EntryEndpoints {
    pub results: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct DetokenizerEndpoints {
    pub tokens: String,
}
