//! A run: warm-up, measurement, report.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;
use tokio::task::LocalSet;

use crate::arrivals::arrivals;
use crate::body::body;
use crate::client::{Client, Fault};
use crate::config::{BenchConfig, ConfigError};
use crate::phase::{Cut, Phase, deadline, watched};
use crate::process::{self, ProcessError};
use crate::report::Report;
use crate::summary::{Finished, summary};

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Whether requests count yet.
    pub measuring: bool,
    pub total: usize,
    pub completed: u64,
    pub failed: u64,
    pub chunks: u64,
}

/// Looks on while a run goes on, from the thread that drives it.
pub trait Watcher {
    /// Called a few times a second; `false` cuts the run.
    fn tick(&mut self, progress: Progress) -> bool;
}

/// Why there is no report.
#[derive(Debug, Error)]
pub enum RunError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error("asking {url} for its models failed: {message}")]
    Models { url: String, message: String },
    #[error("a warm-up request failed ({kind}): {message}")]
    Warmup { kind: String, message: String },
    #[error("the warm-up did not end within the timeout")]
    WarmupTimeout,
    #[error("interrupted before the measurement began")]
    Interrupted,
    #[error("histogram: {0}")]
    Histogram(#[from] hdrhistogram::CreationError),
    #[error("runtime: {0}")]
    Runtime(#[from] std::io::Error),
}

/// Runs to the end, to the timeout, or until the watcher cuts it.
///
/// # Errors
/// Nothing could be measured; failed requests of the measurement itself are part of the report.
pub fn run(config: &BenchConfig, watcher: &mut dyn Watcher) -> Result<Report, RunError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, measure(config, watcher))
}

async fn measure(config: &BenchConfig, watcher: &mut dyn Watcher) -> Result<Report, RunError> {
    process::sample(&config.pids, config.pid_tree)?;
    let items = config.workload.items(
        config.endpoint,
        config.warmup,
        config.num_prompts,
        config.seed,
    )?;
    let client = Rc::new(Client::new(config)?);
    let model = model(config, &client, watcher).await?;
    let bodies: Vec<Bytes> = items
        .iter()
        .map(|item| body(config, &model, item))
        .collect();
    drop(items);
    let (warmup, measured) = bodies.split_at(config.warmup);

    let uri = client.uri(config.endpoint.path())?;
    let phase = |measuring| Phase::new(config, &client, &uri, measuring);
    warm_up(&phase(false)?, warmup, watcher).await?;

    let before = process::sample(&config.pids, config.pid_tree)?;
    let own_before = process::own_cpu();
    let due = arrivals(measured.len(), config.request_rate, config.seed);
    let phase = phase(true)?;
    let cut = phase.drive(measured, &due, watcher).await;
    let duration = phase.state.recorder.borrow().started.elapsed();
    let own_cpu = process::own_cpu().saturating_sub(own_before);
    let after = process::sample_again(&config.pids, config.pid_tree);

    let finished = Finished {
        requests: measured.len(),
        duration,
        cut,
        connections: client.connections_opened(),
        own_cpu,
        before,
        after,
    };
    Ok(summary(config, model, &phase.state, &finished))
}

/// The model to name in requests. Ends early if the watcher says so.
async fn model(
    config: &BenchConfig,
    client: &Client,
    watcher: &mut dyn Watcher,
) -> Result<String, RunError> {
    if let Some(model) = &config.model {
        return Ok(model.clone());
    }
    let idle = Progress {
        measuring: false,
        total: 0,
        completed: 0,
        failed: 0,
        chunks: 0,
    };
    let failed = |fault: Fault| RunError::Models {
        url: config.base_url.clone(),
        message: fault.message,
    };
    match watched(client.first_model(), deadline(config), watcher, || idle).await {
        Ok(answer) => answer.map_err(failed),
        Err(Cut::Timeout) => Err(failed(Fault::new(
            "timeout",
            "no answer within the timeout",
        ))),
        Err(Cut::Interrupted) => Err(RunError::Interrupted),
    }
}

async fn warm_up(
    phase: &Phase<'_>,
    bodies: &[Bytes],
    watcher: &mut dyn Watcher,
) -> Result<(), RunError> {
    let cut = phase
        .drive(bodies, &vec![Duration::ZERO; bodies.len()], watcher)
        .await;
    let recorder = phase.state.recorder.borrow();
    if let Some((kind, (_, message))) = recorder.failures.first_key_value() {
        return Err(RunError::Warmup {
            kind: kind.clone(),
            message: message.clone(),
        });
    }
    match cut {
        None => Ok(()),
        Some(Cut::Timeout) => Err(RunError::WarmupTimeout),
        Some(Cut::Interrupted) => Err(RunError::Interrupted),
    }
}
