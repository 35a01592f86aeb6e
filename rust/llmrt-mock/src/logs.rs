//! Log lines on standard error.

use std::io::IsTerminal;

use tracing_subscriber::{EnvFilter, fmt};

use crate::config::{LogConfig, LogFormat};

/// Sets up the process's log lines; returns what is wrong with the level.
pub fn init(config: &LogConfig) -> Result<(), String> {
    let filter = EnvFilter::builder()
        .parse(&config.level)
        .map_err(|error| error.to_string())?;
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
