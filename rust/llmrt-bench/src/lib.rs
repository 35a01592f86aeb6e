//! A load generator for servers that speak the OpenAI API: sends a workload over HTTP/1.1 or HTTP/2, times every
//! streamed chunk and says what the server, and the client itself, spent on it.
//!
//! One thread, one current-thread runtime: what a measurement costs is then small, and known.

mod arrivals;
mod body;
mod client;
mod config;
mod exchange;
mod phase;
mod process;
mod record;
mod report;
mod run;
mod sse;
mod summary;
mod workload;

pub use config::{BenchConfig, ConfigError, Endpoint, Goodput, Workload};
pub use process::ProcessError;
pub use report::{Distribution, Failure, ProcessUse, Report, Timeline, Use};
pub use run::{Progress, RunError, Watcher, run};
