//! What processes are told of their links, as they find it in their JSON configuration.

use std::time::Duration;

use serde::Deserialize;

use crate::options::LinkOptions;

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
    /// Whether both are times that a clock can measure.
    pub fn are_sound(&self) -> bool {
        [self.heartbeat_s, self.silence_s]
            .iter()
            .all(|s| s.is_finite() && *s > 0.0 && *s <= 1e6)
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
