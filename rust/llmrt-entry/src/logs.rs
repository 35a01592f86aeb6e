//! Log lines on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

use crate::config::{LogConfig, LogFormat};

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("log level {level:?} is not understood: {reason}")]
pub struct LogError {
    level: String,
    reason: String,
}

/// Sets up the process's log lines. The first worker of a process decides; later calls change nothing.
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
