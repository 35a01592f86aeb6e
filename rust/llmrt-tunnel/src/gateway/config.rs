//! What a gateway is told at its start: one JSON object.

use llmrt_link::{ConfigError, LinkTimes, Rule, read_config};
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

impl Config {
    /// Reads and checks the JSON object.
    pub fn from_json(json: &str) -> Result<Self, ConfigError> {
        read_config("gateway", json, Self::rules)
    }

    fn rules(&self) -> Vec<Rule> {
        let workers = llmrt_wire::RequestId::MAX_WORKERS;
        vec![
            (
                self.slots.iter().all(|slot| slot.worker < workers),
                "slots.worker",
                "below 4096",
            ),
            (!self.slots.is_empty(), "slots", "one or more"),
            self.link.rule(),
        ]
    }
}
