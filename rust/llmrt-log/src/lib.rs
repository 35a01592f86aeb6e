//! Log lines of llmrt's Rust parts, on standard error; `python/llmrt/logs.py` writes the same two forms.

mod queue;

use std::io::{IsTerminal, stderr};
use std::thread;
use std::time::Duration;

use queue::Queue;
use serde::Deserialize;
use tracing_subscriber::{EnvFilter, fmt};

/// Lines that may wait for whoever reads standard error; more are lost, and their number is logged.
static QUEUE: Queue = Queue::new(4096);
/// How long a process that ends waits for its last lines to be written.
const FLUSH: Duration = Duration::from_secs(1);

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
pub enum LogError {
    #[error("log level {level:?} is not understood: {reason}")]
    Level { level: String, reason: String },
    #[error("cannot start the thread that writes log lines: {0}")]
    Thread(#[from] std::io::Error),
}

/// Waits at its end until the lines so far have been written, a second at most.
#[must_use = "the last lines of a process are lost without it"]
#[derive(Debug)]
pub struct Flush(());

impl Drop for Flush {
    fn drop(&mut self) {
        QUEUE.flush(FLUSH);
    }
}

/// Sets up the process's log lines. The first call of a process decides; later ones change nothing.
///
/// A thread of its own writes them, at once: nobody who logs waits for standard error. What is returned is to be kept
/// until the end.
///
/// # Errors
/// The level is neither a level's name nor a filter; the system refuses a thread.
pub fn init(config: &LogConfig) -> Result<Flush, LogError> {
    let filter = EnvFilter::builder()
        .parse(&config.level)
        .map_err(|e| LogError::Level {
            level: config.level.clone(),
            reason: e.to_string(),
        })?;
    let builder = fmt().with_env_filter(filter).with_writer(|| &QUEUE);
    let set = match config.format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Text => builder.with_ansi(stderr().is_terminal()).try_init(),
    };
    // An error here means that somebody has set up logging already.
    if set.is_ok() {
        let lost = |lines| tracing::warn!(lines, "log lines lost: nobody read standard error");
        thread::Builder::new()
            .name("llmrt-log".to_owned())
            .spawn(move || QUEUE.write_to(stderr(), lost))?;
    }
    Ok(Flush(()))
}
