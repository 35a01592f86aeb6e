//! What a run is told, as JSON.

use std::path::PathBuf;

use http::uri::{Scheme, Uri};
use serde::Deserialize;
use serde_json::{Map, Value};
use thiserror::Error;

/// Most requests of a run; their bodies are built before it starts.
pub const MAX_PROMPTS: usize = 10_000_000;
/// Most tokens of a made-up prompt or an answer.
pub const MAX_TOKENS: u32 = 10_000_000;

/// A configuration that cannot work; the message names the flag of `llmrt bench serve` and what to change.
#[derive(Debug, Error, PartialEq)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// A whole run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BenchConfig {
    /// `http://host:port` or `https://host:port`, with or without `/v1` or another path before the endpoint's.
    pub base_url: String,
    pub endpoint: Endpoint,
    /// Asked from `/v1/models` if absent.
    #[serde(default)]
    pub model: Option<String>,
    #[serde(default)]
    pub api_key: Option<String>,
    /// PEM file of the authorities that may vouch for an `https` server; absent: those of the system.
    #[serde(default)]
    pub ssl_ca_certs: Option<PathBuf>,
    #[serde(default)]
    pub headers: Vec<(String, String)>,
    /// Members added to every body; they win over the run's own.
    #[serde(default)]
    pub extra_body: Map<String, Value>,
    /// HTTP/2 instead of HTTP/1.1; in clear text with prior knowledge.
    #[serde(default)]
    pub http2: bool,
    /// Most requests at once on one HTTP/2 connection.
    #[serde(default = "default_streams")]
    pub streams_per_connection: usize,
    pub workload: Workload,
    /// Requests to measure. Absent: as many as the file of the workload has lines.
    #[serde(default)]
    pub num_prompts: Option<usize>,
    /// Most requests at once; absent: no limit.
    #[serde(default)]
    pub max_concurrency: Option<usize>,
    /// Mean arrivals per second of a Poisson process; absent: all at once.
    #[serde(default)]
    pub request_rate: Option<f64>,
    /// Requests sent, and not counted, before the measurement.
    #[serde(default)]
    pub warmup: usize,
    #[serde(default)]
    pub ignore_eos: bool,
    #[serde(default)]
    pub seed: u64,
    /// Seconds after which the run is cut, warm-up and measurement each.
    pub timeout: f64,
    #[serde(default)]
    pub goodput: Option<Goodput>,
    /// Processes whose CPU time and memory are reported.
    #[serde(default)]
    pub pids: Vec<u32>,
    /// Whether the descendants of `pids` count too.
    #[serde(default)]
    pub pid_tree: bool,
}

fn default_streams() -> usize {
    128
}

/// The route that is measured.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Endpoint {
    Chat,
    Completions,
}

impl Endpoint {
    /// Path below `/v1`.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Self::Chat => "/chat/completions",
            Self::Completions => "/completions",
        }
    }
}

/// Where prompts come from. Lengths are in tokens; words are chosen so that most tokenizers make one token of each.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Workload {
    /// Random words, or token ids of `[low, high)`; each length is uniform in `length * (1 +- range_ratio)`.
    Random {
        input_len: u32,
        output_len: u32,
        #[serde(default)]
        range_ratio: f64,
        #[serde(default)]
        token_ids: Option<(u32, u32)>,
    },
    /// JSON lines with `prompt` or `messages`, and optionally `max_tokens`; the file is repeated as often as needed.
    File { path: PathBuf, output_len: u32 },
    /// `num_prefixes` prefixes, taken in turn, each followed by a suffix that no other request has.
    SharedPrefix {
        num_prefixes: usize,
        prefix_len: u32,
        suffix_len: u32,
        output_len: u32,
        #[serde(default)]
        token_ids: Option<(u32, u32)>,
    },
}

/// Limits, milliseconds, that a request must keep to count as good.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goodput {
    #[serde(default)]
    pub ttft: Option<f64>,
    #[serde(default)]
    pub tpot: Option<f64>,
    #[serde(default)]
    pub e2e: Option<f64>,
}

/// A server's address, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Whether it speaks TLS.
    pub secure: bool,
    pub host: String,
    pub port: u16,
    /// `host:port` as it goes into the request.
    pub authority: String,
    /// Path up to and including `/v1`.
    pub prefix: String,
}

impl BenchConfig {
    /// Reads and checks a configuration.
    ///
    /// # Errors
    /// JSON of another form, or a value out of its range.
    pub fn from_json(json: &str) -> Result<Self, ConfigError> {
        let config: Self =
            serde_json::from_str(json).map_err(|e| ConfigError(format!("configuration: {e}")))?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.target()?;
        at_least_one("--num-prompts", self.num_prompts)?;
        at_least_one("--max-concurrency", self.max_concurrency)?;
        at_least_one(
            "--streams-per-connection",
            Some(self.streams_per_connection),
        )?;
        let prompts = self.num_prompts.unwrap_or(0).saturating_add(self.warmup);
        if prompts > MAX_PROMPTS {
            return refuse(format!(
                "--num-prompts and --warmup may be {MAX_PROMPTS} together"
            ));
        }
        if !(self.timeout > 0.0 && self.timeout <= 1e9) {
            return refuse("--timeout must be more than 0 seconds".into());
        }
        if self
            .request_rate
            .is_some_and(|r| !(r.is_finite() && r >= 1e-6))
        {
            return refuse("--request-rate must be more than 0 requests per second".into());
        }
        self.check_workload()
    }

    fn check_workload(&self) -> Result<(), ConfigError> {
        let (lengths, token_ids) = match &self.workload {
            Workload::File { output_len, .. } => (vec![*output_len], None),
            Workload::Random {
                input_len,
                output_len,
                range_ratio,
                token_ids,
            } => {
                if !(0.0..1.0).contains(range_ratio) {
                    return refuse("--range-ratio must be at least 0 and less than 1".into());
                }
                (vec![*input_len, *output_len], *token_ids)
            }
            Workload::SharedPrefix {
                num_prefixes,
                prefix_len,
                suffix_len,
                output_len,
                token_ids,
            } => {
                at_least_one("--num-prefixes", Some(*num_prefixes))?;
                (vec![*prefix_len, *suffix_len, *output_len], *token_ids)
            }
        };
        if !lengths
            .iter()
            .all(|length| (1..=MAX_TOKENS).contains(length))
        {
            return refuse(format!("lengths must be between 1 and {MAX_TOKENS} tokens"));
        }
        if self.num_prompts.is_none() && !matches!(self.workload, Workload::File { .. }) {
            return refuse("--num-prompts is needed unless the prompts come from a file".into());
        }
        match token_ids {
            Some(_) if self.endpoint == Endpoint::Chat => {
                refuse("prompts of token ids need the completions endpoint".into())
            }
            Some((low, high)) if low >= high => {
                refuse(format!("the range of token ids {low}:{high} is empty"))
            }
            _ => Ok(()),
        }
    }

    /// The address in `base_url`.
    ///
    /// # Errors
    /// Not an `http://` or `https://` URL.
    pub fn target(&self) -> Result<Target, ConfigError> {
        let url = &self.base_url;
        let uri: Uri = url
            .parse()
            .map_err(|e| ConfigError(format!("--base-url {url:?}: {e}")))?;
        let secure = uri.scheme() == Some(&Scheme::HTTPS);
        let known = secure || uri.scheme() == Some(&Scheme::HTTP);
        let (Some(authority), true) = (uri.authority(), known) else {
            return refuse(format!(
                "--base-url {url:?} must look like http://host:port or https://host:port"
            ));
        };
        if self.ssl_ca_certs.is_some() && !secure {
            return refuse("--ssl-ca-certs needs an https URL".into());
        }
        if authority.as_str().contains('@') || uri.query().is_some() {
            return refuse(format!(
                "--base-url {url:?} may have neither user name nor query"
            ));
        }
        let path = uri.path().trim_end_matches('/');
        Ok(Target {
            secure,
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority
                .port_u16()
                .unwrap_or(if secure { 443 } else { 80 }),
            authority: authority.to_string(),
            prefix: if path.ends_with("/v1") {
                path.to_owned()
            } else {
                format!("{path}/v1")
            },
        })
    }
}

fn refuse<T>(message: String) -> Result<T, ConfigError> {
    Err(ConfigError(message))
}

fn at_least_one(name: &str, value: Option<usize>) -> Result<(), ConfigError> {
    match value {
        Some(0) => refuse(format!("{name} must be at least 1")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(changes: &[(&str, Value)]) -> Result<BenchConfig, ConfigError> {
        let mut config = json!({
            "base_url": "http://localhost:8000", "endpoint": "completions", "num_prompts": 4, "timeout": 10,
            "workload": {"kind": "random", "input_len": 8, "output_len": 4},
        });
        for (name, value) in changes {
            config[name] = value.clone();
        }
        BenchConfig::from_json(&config.to_string())
    }

    fn target(url: &str) -> Target {
        read(&[("base_url", url.into())]).unwrap().target().unwrap()
    }

    #[test]
    fn urls_are_taken_with_and_without_v1() {
        for url in [
            "http://h:81",
            "http://h:81/",
            "http://h:81/v1",
            "http://h:81/v1/",
        ] {
            let target = target(url);
            assert_eq!((target.host.as_str(), target.port), ("h", 81));
            assert_eq!(target.prefix, "/v1");
        }
        assert_eq!(target("http://h/api").prefix, "/api/v1");
        assert_eq!(target("http://[::1]:9").host, "::1");
        assert_eq!(target("http://h").port, 80);
    }

    #[test]
    fn nonsense_is_refused_with_the_name_of_the_field() {
        let random = |key: &str, value: Value| {
            let mut workload = json!({"kind": "random", "input_len": 8, "output_len": 4});
            workload[key] = value;
            ("workload", workload)
        };
        for (change, word) in [
            (("base_url", json!("ftp://h")), "or https://host:port"),
            (("ssl_ca_certs", json!("ca.pem")), "needs an https URL"),
            (("base_url", json!("h:80")), "--base-url"),
            (("base_url", json!("http://u@h")), "user name"),
            (("num_prompts", json!(0)), "--num-prompts"),
            (("num_prompts", json!(null)), "--num-prompts"),
            (("num_prompts", json!(MAX_PROMPTS + 1)), "--num-prompts"),
            (("max_concurrency", json!(0)), "--max-concurrency"),
            (
                ("streams_per_connection", json!(0)),
                "--streams-per-connection",
            ),
            (("request_rate", json!(0.0)), "--request-rate"),
            (("request_rate", json!(-1.0)), "--request-rate"),
            (("timeout", json!(0)), "--timeout"),
            (("typo", json!(0)), "typo"),
            (random("range_ratio", json!(1.0)), "--range-ratio"),
            (random("input_len", json!(0)), "lengths"),
            (random("token_ids", json!([5, 5])), "5:5"),
        ] {
            let error = read(std::slice::from_ref(&change)).unwrap_err();
            assert!(error.0.contains(word), "{change:?}: {error}");
        }
        let ids = random("token_ids", json!([5, 9]));
        assert!(read(std::slice::from_ref(&ids)).is_ok());
        let error = read(&[ids, ("endpoint", json!("chat"))]).unwrap_err();
        assert!(error.0.contains("completions"), "{error}");
    }
}
