//! Log lines of llmrt's Rust parts, on standard error; `python/llmrt/logs.py` writes the same two forms.

use std::io::IsTerminal;

use serde::Deserialize;
use tracing_subscriber::{EnvFilter, fmt};

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

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("log level {level:?} is not understood: {reason}")]
pub struct LogError {
    level: String,
    reason: String,
}

/// Sets up the process's log lines. The first call of a process decides; later ones change nothing.
///
/// # Errors
/// The level is neither a level's name nor a filter.
pub fn init(config: &LogConfig) -> Result<(), LogError> {
    let filter = EnvFilter::builder()
        .parse(&config.level)
        .map_err(|e| LogError {
            level: config.level.clone(),
            reason: e.to_string(),
        })?;
    let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // An error here means that somebody has set up logging already.
    let _ = match config.format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Text => builder
            .with_ansi(std::io::stderr().is_terminal())
            .try_init(),
    };
    Ok(())
}
