//! What a detokenizer is told at its start: one JSON object.

use llmrt_link::{ConfigError, LinkTimes, Rule, Topology, read_config};
use llmrt_log::LogConfig;
use llmrt_text::TokenizerSource;
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

impl Config {
    /// Reads and checks the JSON object.
    pub fn from_json(json: &str) -> Result<Self, ConfigError> {
        read_config("detokenizer", json, Self::rules)
    }

    fn rules(&self) -> Vec<Rule> {
        let workers = 1..=usize::from(llmrt_wire::RequestId::MAX_WORKERS);
        let topology = &self.topology;
        vec![
            (
                workers.contains(&topology.entry.len()),
                "topology.entry",
                "a list of 1 to 4096 workers",
            ),
            (
                topology.detokenizer.len() > self.index as usize,
                "index",
                "a position in topology.detokenizer",
            ),
            self.link.rule(),
        ]
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
        assert_eq!(
            config.link.options().heartbeat,
            std::time::Duration::from_secs(1)
        );
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
