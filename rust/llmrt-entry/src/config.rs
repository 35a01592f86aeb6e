//! What an entry worker is told at its start: one JSON object.

mod http;
mod tls;

use std::path::PathBuf;
use std::time::Duration;

use llmrt_link::LinkTimes;
use llmrt_log::LogConfig;
use llmrt_text::TokenizerSource;
use serde::Deserialize;

pub use http::{Cors, Http2, Web};
pub use tls::{ClientVerify, Secret, Tls};

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
    pub endpoints: Endpoints,
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
    pub api_keys: Vec<String>,
    /// Bearer tokens that open every route and have no limits; where there are some, `/metrics` takes no others.
    #[serde(default)]
    pub admin_api_keys: Vec<String>,
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

/// Bounds on what clients can make the worker hold or wait for.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Largest request body, bytes; larger ones get 413.
    pub max_body_bytes: usize,
    /// Request bodies held at once until their prompts are tokens, bytes; requests beyond that get 429.
    pub max_bodies_bytes: usize,
    /// Seconds within which a request body must have arrived; later ones get 408.
    pub body_timeout_s: f64,
    /// Open connections; further ones wait in the kernel's queue.
    pub max_connections: usize,
    /// Generations admitted at once, running or queued; more get 429.
    pub max_requests: u32,
    /// Generations that the scheduler runs at once. Where several keys want more, the others wait for their turn here.
    pub max_running: u32,
    /// Prompt tokens that may wait for their first token; more get 429. 0: no bound.
    pub max_queued_tokens: u32,
    /// Seconds from a request's arrival to the end of its answer; 0: no bound.
    pub request_timeout_s: f64,
    /// Answers to one request at most, and no more than `max_requests`: `n` for each of its prompts.
    pub max_choices: u32,
    /// Size of a request's header fields, bytes.
    pub max_header_bytes: u32,
    /// Number of a request's header fields.
    pub max_headers: usize,
    /// Seconds within which a connection must have sent its HTTP/2 preface or the head of an HTTP/1.1 request.
    pub header_timeout_s: f64,
    /// Seconds that a connection is kept without a request.
    pub keep_alive_timeout_s: f64,
    /// Seconds after which a connection takes no new requests, give or take a tenth; 0: never.
    pub max_connection_age_s: f64,
    /// Concurrent streams of one HTTP/2 connection.
    pub max_concurrent_streams: u32,
    /// Text that may wait for a slow reader, bytes per response; four times as much ends the request at once.
    pub response_buffer_bytes: usize,
    /// Seconds that a response may stay above `response_buffer_bytes` before its request is aborted, and that a
    /// client may read nothing of what was sent before it is hung up on.
    pub stall_timeout_s: f64,
    /// Longest silence on a stream before a comment is sent, seconds; 0 sends none.
    pub ping_interval_s: f64,
    /// Seconds within which `/health_generate` must have its token.
    pub health_timeout_s: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_body_bytes: 16 << 20,
            max_bodies_bytes: 256 << 20,
            body_timeout_s: 30.0,
            max_connections: 8192,
            max_requests: 1088,
            max_running: 64,
            max_queued_tokens: 0,
            request_timeout_s: 0.0,
            max_choices: 128,
            max_header_bytes: 16 << 10,
            max_headers: 100,
            header_timeout_s: 10.0,
            keep_alive_timeout_s: 75.0,
            max_connection_age_s: 3600.0,
            max_concurrent_streams: 1024,
            response_buffer_bytes: 256 << 10,
            stall_timeout_s: 60.0,
            ping_interval_s: 15.0,
            health_timeout_s: 20.0,
        }
    }
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

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("entry configuration: {0}")]
    Json(#[from] serde_json::Error),
    #[error("entry configuration: {name} must be {rule}")]
    Range {
        name: &'static str,
        rule: &'static str,
    },
}

impl EntryConfig {
    /// Reads and checks the JSON object.
    pub fn from_json(json: &str) -> Result<Self, ConfigError> {
        let config: Self = serde_json::from_str(json)?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let limits = &self.limits;
        let seconds = |v: f64| v.is_finite() && v > 0.0 && v <= 1e6;
        let rules = [
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
                (self.api_keys.iter().chain(&self.admin_api_keys)).all(|key| !key.is_empty()),
                "api_keys and admin_api_keys",
                "non-empty strings",
            ),
            (
                self.tokenizer_threads <= 256,
                "tokenizer_threads",
                "at most 256",
            ),
            (
                limits.max_bodies_bytes >= limits.max_body_bytes,
                "limits.max_bodies_bytes",
                "at least limits.max_body_bytes",
            ),
            (
                limits.max_connections >= 1,
                "limits.max_connections",
                "at least 1",
            ),
            (
                limits.max_requests >= 1,
                "limits.max_requests",
                "at least 1",
            ),
            (limits.max_running >= 1, "limits.max_running", "at least 1"),
            (
                (0.0..=86_400.0).contains(&limits.request_timeout_s),
                "limits.request_timeout_s",
                "between 0 and 86400",
            ),
            (limits.max_choices >= 1, "limits.max_choices", "at least 1"),
            (limits.max_headers >= 1, "limits.max_headers", "at least 1"),
            (
                limits.response_buffer_bytes >= 1024,
                "limits.response_buffer_bytes",
                "at least 1024",
            ),
            (
                seconds(limits.body_timeout_s),
                "limits.body_timeout_s",
                "a positive number of seconds",
            ),
            (
                seconds(limits.header_timeout_s),
                "limits.header_timeout_s",
                "a positive number of seconds",
            ),
            (
                seconds(limits.keep_alive_timeout_s),
                "limits.keep_alive_timeout_s",
                "a positive number of seconds",
            ),
            (
                seconds(limits.stall_timeout_s),
                "limits.stall_timeout_s",
                "a positive number of seconds",
            ),
            (
                limits.ping_interval_s == 0.0 || seconds(limits.ping_interval_s),
                "limits.ping_interval_s",
                "0 or more seconds",
            ),
            (
                seconds(limits.health_timeout_s),
                "limits.health_timeout_s",
                "a positive number of seconds",
            ),
            (
                limits.max_connection_age_s == 0.0 || seconds(limits.max_connection_age_s),
                "limits.max_connection_age_s",
                "0 or more seconds",
            ),
            (
                limits.max_concurrent_streams >= 1,
                "limits.max_concurrent_streams",
                "at least 1",
            ),
            (
                self.http2.stream_window <= Http2::MAX_WINDOW,
                "http2.stream_window",
                "at most 2147483647",
            ),
            (
                (Http2::MIN_CONNECTION_WINDOW..=Http2::MAX_WINDOW)
                    .contains(&self.http2.connection_window),
                "http2.connection_window",
                "between 65535 and 2147483647",
            ),
            (
                seconds(self.http2.keep_alive_interval_s)
                    && seconds(self.http2.keep_alive_timeout_s),
                "http2.keep_alive_interval_s and http2.keep_alive_timeout_s",
                "positive numbers of seconds",
            ),
            (
                self.web.cors.is_sound(),
                "web.cors",
                "lists of visible ASCII characters without spaces",
            ),
            (
                !(self.web.cors.credentials && self.web.cors.any()),
                "web.cors.credentials",
                "off where every origin is allowed",
            ),
            (
                self.link.are_sound(),
                "link.heartbeat_s and link.silence_s",
                "positive numbers of seconds",
            ),
            (
                self.stat_interval_s == 0.0 || seconds(self.stat_interval_s),
                "stat_interval_s",
                "0 or more seconds",
            ),
        ];
        match rules.into_iter().find(|(holds, _, _)| !holds) {
            Some((_, name, rule)) => Err(ConfigError::Range { name, rule }),
            None => Ok(()),
        }
    }
}

impl Supervisor {
    pub(crate) fn shutdown_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.shutdown_timeout_s)
    }
}

impl Limits {
    pub(crate) fn request_timeout(&self) -> Option<Duration> {
        let seconds = self.request_timeout_s;
        (seconds > 0.0).then(|| Duration::from_secs_f64(seconds))
    }

    pub(crate) fn body_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.body_timeout_s)
    }

    pub(crate) fn header_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.header_timeout_s)
    }

    pub(crate) fn keep_alive_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.keep_alive_timeout_s)
    }

    pub(crate) fn max_connection_age(&self) -> Option<Duration> {
        let age = self.max_connection_age_s;
        (age > 0.0).then(|| Duration::from_secs_f64(age))
    }

    pub(crate) fn stall_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.stall_timeout_s)
    }

    pub(crate) fn ping_interval(&self) -> Option<Duration> {
        (self.ping_interval_s > 0.0).then(|| Duration::from_secs_f64(self.ping_interval_s))
    }

    pub(crate) fn health_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.health_timeout_s)
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
