//! What a gateway is told at its start: one JSON object.

use llmrt_link::LinkTimes;
use llmrt_log::LogConfig;
use serde::Deserialize;
use serde_json::Value;

use crate::secret::Secret;

/// Configuration of a gateway. Unknown keys are refused: a misspelt option must not be silently off.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Descriptor of a bound and listening TCP socket, which the gateway takes over.
    pub listen_fd: i32,
    /// `control`: the supervisor binds, the gateway connects.
    pub control: String,
    /// `gateway.status`: the gateway binds; whoever looks in connects.
    pub status: String,
    /// `scheduler.requests`: the scheduler binds, the gateway connects for each node.
    pub requests: String,
    /// The places for nodes.
    pub slots: Vec<SlotConfig>,
    pub secret: Secret,
    /// Of the core's tokenizer; nodes must have the same.
    pub fingerprint: String,
    /// What a node that joins is told of the core.
    pub core: Value,
    #[serde(default)]
    pub log: LogConfig,
    #[serde(default)]
    pub link: LinkTimes,
}

/// A place that a node can have.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotConfig {
    /// Its number among the entry workers.
    pub worker: u16,
    /// `entry[worker].results`: the gateway binds, the detokenizers connect.
    pub results: String,
}

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("gateway configuration: {0}")]
    Json(#[from] serde_json::Error),
    #[error("gateway configuration: {name} must be {rule}")]
    Range {
        name: &'static str,
        rule: &'static str,
    },
}

impl Config {
    /// Reads and checks the JSON object.
    pub fn from_json(json: &str) -> Result<Self, ConfigError> {
        let config: Self = serde_json::from_str(json)?;
        let workers = llmrt_wire::RequestId::MAX_WORKERS;
        let rules = [
            (
                config.slots.iter().all(|slot| slot.worker < workers),
                "slots.worker",
                "below 4096",
            ),
            (!config.slots.is_empty(), "slots", "one or more"),
            (
                config.link.are_sound(),
                "link.heartbeat_s and link.silence_s",
                "positive numbers of seconds",
            ),
        ];
        match rules.into_iter().find(|(holds, _, _)| !holds) {
            Some((_, name, rule)) => Err(ConfigError::Range { name, rule }),
            None => Ok(config),
        }
    }
}
