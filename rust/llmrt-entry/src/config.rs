//! What an entry worker is told at its start: one JSON object.

mod http;
mod limits;
mod secret;
mod tls;

use std::path::PathBuf;
use std::time::Duration;

use llmrt_link::{ConfigError, LinkTimes, Rule, read_config};
use llmrt_log::LogConfig;
use llmrt_text::TokenizerSource;
use serde::Deserialize;

pub use http::{Cors, Http2, Web};
pub use limits::Limits;
pub use secret::Secret;
pub use tls::{ClientVerify, Tls};

use crate::tenants::KeySources;

/// Configuration of one entry worker. Unknown keys are refused: a misspelt option must not be silently off.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntryConfig {
    /// Number of this worker; the upper bits of its request ids.
    #[serde(default)]
    pub worker: u16,
    /// Descriptor of a bound and listening stream socket. The worker takes it over and closes it. Without one it
    /// answers the requests of its own process alone.
    #[serde(default)]
    pub listen_fd: Option<i32>,
    /// Absent for a node, whose core is on another host.
    #[serde(default)]
    pub endpoints: Option<Endpoints>,
    /// Detokenizers of the core; all of them send results.
    #[serde(default = "defaults::detokenizers")]
    pub detokenizers: usize,
    /// Who a worker in a process of its own answers to. A worker inside the supervisor's process has nobody.
    #[serde(default)]
    pub supervisor: Option<Supervisor>,
    pub model: ModelInfo,
    /// Threads that tokenize and render chat templates; 0 takes them from the CPU quota.
    #[serde(default)]
    pub tokenizer_threads: usize,
    /// Text and token ids of prompts that are kept to be found again, bytes; 0 keeps none.
    #[serde(default = "defaults::tokenizer_cache_bytes")]
    pub tokenizer_cache_bytes: usize,
    /// Bearer tokens that open every route; none: no key is asked for.
    #[serde(default)]
    pub api_keys: Vec<Secret>,
    /// Bearer tokens that open every route and have no limits; where there are some, `/metrics` takes no others.
    #[serde(default)]
    pub admin_api_keys: Vec<Secret>,
    /// File of further keys with their limits, read again when it changes.
    #[serde(default)]
    pub api_key_file: Option<PathBuf>,
    /// Whether the scheduler runs requests in the order of their priorities.
    #[serde(default)]
    pub priorities: bool,
    #[serde(default)]
    pub limits: Limits,
    #[serde(default)]
    pub http2: Http2,
    #[serde(default)]
    pub web: Web,
    /// TLS on the listening socket; absent: clear text.
    #[serde(default)]
    pub tls: Option<Tls>,
    #[serde(default)]
    pub log: LogConfig,
    /// Seconds between stat lines while there is work; 0 writes none.
    #[serde(default = "defaults::stat_interval_s")]
    pub stat_interval_s: f64,
    #[serde(default)]
    pub link: LinkTimes,
}

/// The rows of the topology table that concern an entry worker.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoints {
    /// `scheduler.requests`: the scheduler binds, the entry connects.
    pub requests: String,
    /// `entry[i].results`: the entry binds, the detokenizers connect.
    pub results: String,
    /// `ledger`, of a server with several workers: its supervisor binds, the entries connect.
    #[serde(default)]
    pub ledger: Option<String>,
}

/// The supervisor of a worker in a process of its own.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Supervisor {
    /// `control`: the supervisor binds, the entry connects.
    pub control: String,
    /// Seconds that open requests get when the process is told to end by SIGTERM.
    pub shutdown_timeout_s: f64,
}

/// The served model, as clients and the tokenizer need it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelInfo {
    pub name: String,
    /// Further names that requests may use.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Longest prompt plus answer, tokens.
    pub max_model_len: u32,
    pub vocab_size: u32,
    pub tokenizer: TokenizerSource,
    /// Jinja source; absent when the model has none, and then chat requests are refused.
    #[serde(default)]
    pub chat_template: Option<String>,
    #[serde(default)]
    pub bos_token: Option<String>,
    #[serde(default)]
    pub eos_token: Option<String>,
    /// Sampling values of requests that leave them out.
    #[serde(default)]
    pub defaults: crate::api::Defaults,
    /// Seconds since 1970, shown by `/v1/models`.
    #[serde(default)]
    pub created: u64,
}

mod defaults {
    pub fn detokenizers() -> usize {
        1
    }

    pub fn tokenizer_cache_bytes() -> usize {
        16 << 20
    }

    pub fn stat_interval_s() -> f64 {
        10.0
    }
}

/// What errors call the process.
pub(crate) const PROCESS: &str = "entry";

/// Whether `value` is a time that can be waited for.
fn is_time(value: f64) -> bool {
    value.is_finite() && value > 0.0 && value <= 1e6
}

impl EntryConfig {
    /// Reads and checks the JSON object.
    pub fn from_json(json: &str) -> Result<Self, ConfigError> {
        read_config(PROCESS, json, Self::rules)
    }

    fn rules(&self) -> Vec<Rule> {
        let own = [
            (
                self.worker < llmrt_wire::RequestId::MAX_WORKERS,
                "worker",
                "below 4096",
            ),
            (
                self.model.max_model_len >= 2,
                "model.max_model_len",
                "at least 2",
            ),
            (self.model.vocab_size >= 1, "model.vocab_size", "at least 1"),
            (self.detokenizers >= 1, "detokenizers", "at least 1"),
            (
                self.supervisor
                    .as_ref()
                    .is_none_or(|supervisor| (0.0..=1e6).contains(&supervisor.shutdown_timeout_s)),
                "supervisor.shutdown_timeout_s",
                "0 or more seconds",
            ),
            (!self.model.name.is_empty(), "model.name", "non-empty"),
            (
                self.model.defaults.are_sound(),
                "model.defaults.repetition_penalty",
                "between 0.000001 and 1000000",
            ),
            (
                (self.api_keys.iter().chain(&self.admin_api_keys)).all(|key| !key.0.is_empty()),
                "api_keys and admin_api_keys",
                "non-empty strings",
            ),
            (
                self.tokenizer_threads <= 256,
                "tokenizer_threads",
                "at most 256",
            ),
            self.link.rule(),
            (
                self.stat_interval_s == 0.0 || is_time(self.stat_interval_s),
                "stat_interval_s",
                "0 or more seconds",
            ),
        ];
        (own.into_iter())
            .chain(self.limits.rules())
            .chain(self.http2.rules())
            .chain(self.web.rules())
            .collect()
    }
}

impl EntryConfig {
    pub(crate) fn keys(&self) -> KeySources {
        KeySources {
            given: self.api_keys.clone(),
            admins: self.admin_api_keys.clone(),
            file: self.api_key_file.clone(),
            priorities: self.priorities,
        }
    }
}

impl Supervisor {
    pub(crate) fn shutdown_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.shutdown_timeout_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(extra: &str) -> String {
        format!(
            r#"{{"listen_fd": 3, "endpoints": {{"requests": "ipc:///a", "results": "ipc:///b"}},
                 "model": {{"name": "m", "max_model_len": 64, "vocab_size": 10,
                            "tokenizer": {{"kind": "json", "path": "t.json"}}}}{extra}}}"#
        )
    }

    #[test]
    fn defaults_are_usable() {
        let config = EntryConfig::from_json(&json("")).unwrap();
        assert_eq!(config.limits.max_headers, 100);
        assert_eq!(config.stat_interval_s, 10.0);
        assert_eq!(config.model.tokenizer.kind, llmrt_text::TokenizerKind::Json);
    }

    #[test]
    fn a_models_own_penalty_has_the_range_of_a_requests() {
        let model = |penalty: &str| {
            let defaults =
                format!(r#""max_model_len": 64, "defaults": {{"repetition_penalty": {penalty}}}"#);
            EntryConfig::from_json(&json("").replace(r#""max_model_len": 64"#, &defaults))
        };
        assert!(model("1.1").is_ok() && model("1e-6").is_ok());
        for bad in ["0", "-1", "1e7"] {
            let message = model(bad).unwrap_err().to_string();
            assert!(
                message.contains("model.defaults.repetition_penalty"),
                "{message}"
            );
        }
    }

    #[test]
    fn refusals_name_the_option() {
        for (extra, name) in [
            (r#", "worker": 4096"#, "worker"),
            (r#", "limits": {"max_requests": 0}"#, "limits.max_requests"),
            (r#", "detokenizers": 0"#, "detokenizers"),
            (
                r#", "supervisor": {"control": "ipc:///c", "shutdown_timeout_s": -1}"#,
                "supervisor.shutdown_timeout_s",
            ),
            (
                r#", "limits": {"stall_timeout_s": -1}"#,
                "limits.stall_timeout_s",
            ),
            (
                r#", "limits": {"max_bodies_bytes": 16777215}"#,
                "limits.max_bodies_bytes",
            ),
            (r#", "limits": {"max_boddy_bytes": 1}"#, "max_boddy_bytes"),
            (
                r#", "http2": {"connection_window": 65534}"#,
                "http2.connection_window",
            ),
            (
                r#", "http2": {"keep_alive_timeout_s": 0}"#,
                "http2.keep_alive_timeout_s",
            ),
            (
                r#", "web": {"cors": {"origins": ["*"], "credentials": true}}"#,
                "web.cors.credentials",
            ),
            (
                r#", "web": {"cors": {"methods": ["GET\r\nx: y"]}}"#,
                "web.cors",
            ),
            (
                r#", "tls": {"certfile": "a", "client_verify": "never"}"#,
                "never",
            ),
        ] {
            let message = EntryConfig::from_json(&json(extra))
                .unwrap_err()
                .to_string();
            assert!(message.contains(name), "{message}");
        }
    }
}
