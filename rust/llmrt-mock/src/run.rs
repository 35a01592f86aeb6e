//! An engine process: links and loop on one current-thread runtime.

use std::sync::Arc;

use llmrt_link::zmq::{self, ZmqInbox};
use llmrt_link::{ConfigError, Identity, LinkError, LinkOptions, Outbox, Welcome};
use llmrt_log::LogError;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::config::Config;
use crate::limits::PAGE_SIZE;
use crate::serve::{Links, serve};
use crate::state::State;

/// Bytes of token frames that may be on their way: a few dozen small frames or a few large ones. It keeps an engine
/// without step time just ahead of its detokenizer.
const FRAMES_WINDOW: usize = 64 << 10;

/// Why a mock engine cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("cannot start: {0}")]
    Io(#[from] std::io::Error),
}

/// Serves until the supervisor sends SIGUSR1. Blocks the calling thread.
///
/// # Errors
/// The configuration is refused, or the inbox cannot be bound.
pub fn run(config_json: &str) -> Result<(), RunError> {
    let config = Config::from_json(config_json)?;
    let _flush = llmrt_log::init(&config.log)?;
    tracing::warn!(
        model = config.model,
        step_ms = config.step_ms,
        "MOCK ENGINE: no model is running, all answers are made up"
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(serve_links(&config))
}

async fn serve_links(config: &Config) -> Result<(), RunError> {
    let identity = Identity::new("scheduler", 0);
    let options = config.link.options();
    // Not SIGTERM, which a service manager sends to all processes at once: there is work until the server has drained.
    let mut told = signal(SignalKind::user_defined1())?;
    let welcome = Welcome {
        incarnation: identity.incarnation,
        credit: config.credit(),
        info: description(config),
    };
    let inbox = ZmqInbox::bind(&config.topology.scheduler.requests, welcome, options).await?;
    let connect = |endpoint: &str, window: usize| -> Result<Arc<dyn Outbox>, LinkError> {
        let options = LinkOptions { window, ..options };
        Ok(Arc::new(zmq::connect(endpoint, identity.clone(), options)?))
    };
    let detokenizers = config.topology.detokenizer.iter();
    let links = Links {
        tokens: detokenizers
            .map(|detokenizer| connect(&detokenizer.tokens, FRAMES_WINDOW))
            .collect::<Result<_, _>>()?,
        control: connect(&config.topology.control, options.window)?,
    };
    let state = State::new(config.limits(), config.pattern.clone());
    let faults = config.faults()?;
    let stop = async move {
        told.recv().await;
    };
    serve(state, faults, config.step(), inbox, links, stop).await;
    Ok(())
}

/// What an entry must know of this core.
fn description(config: &Config) -> String {
    json!({
        "model": config.model,
        "max_model_len": config.max_model_len,
        "vocab_size": config.vocab_size,
        "max_num_seqs": config.max_num_seqs,
        "num_pages": config.limits().pages(),
        "page_size": PAGE_SIZE,
        "engine": "mock",
    })
    .to_string()
}
