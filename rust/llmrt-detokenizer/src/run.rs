//! A detokenizer process: links, tokenizer and loop on one current-thread runtime.

use std::sync::Arc;

use llmrt_link::zmq::{self, ZmqInbox};
use llmrt_link::{ConfigError, Identity, LinkError, Outbox, Welcome};
use llmrt_log::LogError;
use llmrt_text::TokenizerError;
use llmrt_text::decode::TokenDecoder;
use tokio::signal::unix::{SignalKind, signal};

use crate::config::Config;
use crate::serve::{Links, serve};
use crate::state::State;

/// Why a detokenizer cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("cannot read the tokenizer: {0}")]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("cannot start: {0}")]
    Io(#[from] std::io::Error),
}

/// Serves until the supervisor calls `shutdown` or sends SIGUSR1. Blocks the calling thread.
///
/// # Errors
/// The configuration is refused, the tokenizer cannot be read, or the inbox cannot be bound.
pub fn run(config_json: &str) -> Result<(), RunError> {
    let config = Config::from_json(config_json)?;
    let _flush = llmrt_log::init(&config.log)?;
    let decoder = TokenDecoder::load(&config.tokenizer)?;
    tracing::info!(
        index = config.index,
        table = decoder.is_table(),
        "detokenizer starts"
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(serve_links(&config, State::new(decoder)))
}

async fn serve_links(config: &Config, state: State) -> Result<(), RunError> {
    let identity = Identity::new("detokenizer", config.index);
    let options = config.link.options();
    let connect = |endpoint: &str| -> Result<Arc<dyn Outbox>, LinkError> {
        Ok(Arc::new(zmq::connect(endpoint, identity.clone(), options)?))
    };
    let welcome = Welcome {
        incarnation: identity.incarnation,
        ..Welcome::new()
    };
    // Not SIGTERM, which a service manager sends to all processes at once: there is work until the server has drained.
    let mut told = signal(SignalKind::user_defined1())?;
    let topology = &config.topology;
    let inbox = ZmqInbox::bind(
        &topology.detokenizer[config.index as usize].tokens,
        welcome,
        options,
    )
    .await?;
    let links = Links {
        entries: topology
            .entry
            .iter()
            .map(|entry| connect(&entry.results))
            .collect::<Result<_, _>>()?,
        scheduler: connect(&topology.scheduler.requests)?,
        control: connect(&topology.control)?,
    };
    let stop = async move {
        told.recv().await;
    };
    serve(state, inbox, links, stop).await;
    Ok(())
}
