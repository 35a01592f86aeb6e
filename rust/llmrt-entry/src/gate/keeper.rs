//! Keeps the ledger of a server with several workers, on a thread of the supervisor's process.

use std::future::pending;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use llmrt_link::zmq::ZmqInbox;
use llmrt_link::{
    ConfigError, Event, Inbox, LinkError, LinkTimes, PeerId, Rule, Welcome, read_config,
};
use llmrt_log::{LogConfig, LogError};
use llmrt_wire::{Call, Message, Reply};
use serde::Deserialize;
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::books::Books;
use super::ledger::{Bounds, Ledger};
use super::ops::{METHOD, Op};
use super::refusal::Told;
use crate::config::Secret;
use crate::control::reply;
use crate::tenants::{KeyFileError, KeySources, Keys, Rules, Tenant};

/// What a keeper is told at its start: one JSON object.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeeperConfig {
    /// Where workers connect.
    endpoint: String,
    /// Answers open at once, those that the scheduler makes at once, and prompt tokens that may wait (0: no bound).
    max_requests: u32,
    max_running: u32,
    max_queued_tokens: u32,
    api_keys: Vec<Secret>,
    admin_api_keys: Vec<Secret>,
    api_key_file: Option<PathBuf>,
    priorities: bool,
    log: LogConfig,
    link: LinkTimes,
}

impl KeeperConfig {
    fn rules(&self) -> Vec<Rule> {
        vec![self.link.rule()]
    }
}

/// Why a keeper did not start.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Keys(#[from] KeyFileError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("cannot start the ledger's thread: {0}")]
    Thread(#[from] std::io::Error),
    #[error("the ledger's thread ended while it started")]
    Lost,
}

/// A running keeper; ends when dropped.
pub struct Keeper {
    /// Orders to read the file of keys again; the keeper ends with them.
    reloads: Option<UnboundedSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts the keeper; returns when workers can connect.
    ///
    /// # Errors
    /// The configuration is refused, or its endpoint or its keys cannot be used.
    pub fn start(config_json: &str) -> Result<Self, KeeperError> {
        let config: KeeperConfig = read_config("ledger", config_json, KeeperConfig::rules)?;
        let flush = llmrt_log::init(&config.log)?;
        let (reloads, orders) = unbounded_channel();
        let (started, start) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("llmrt-ledger".to_owned())
            .spawn(move || {
                let _flush = flush;
                run(config, orders, &started);
            })?;
        start.recv().unwrap_or(Err(KeeperError::Lost))?;
        Ok(Self {
            reloads: Some(reloads),
            thread: Some(thread),
        })
    }

    /// Reads the file of keys again.
    pub fn reload(&self) {
        if let Some(reloads) = &self.reloads {
            // Fails only when the thread has ended.
            let _ = reloads.send(());
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.reloads = None;
        if let Some(thread) = self.thread.take() {
            // A thread that has panicked has told so.
            let _ = thread.join();
        }
    }
}

fn run(
    config: KeeperConfig,
    orders: UnboundedReceiver<()>,
    started: &mpsc::Sender<Result<(), KeeperError>>,
) {
    let _span = tracing::error_span!("ledger").entered();
    let kept = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(KeeperError::from)
        .and_then(|runtime| runtime.block_on(keep(config, orders, started)));
    if let Err(error) = kept {
        // Nobody waits for it any more only when the starting thread was killed.
        let _ = started.send(Err(error));
    }
}

async fn keep(
    config: KeeperConfig,
    mut orders: UnboundedReceiver<()>,
    started: &mpsc::Sender<Result<(), KeeperError>>,
) -> Result<(), KeeperError> {
    let keys = Keys::load(KeySources {
        given: config.api_keys,
        admins: config.admin_api_keys,
        file: config.api_key_file,
        priorities: config.priorities,
    })?;
    let options = config.link.options();
    let mut inbox = ZmqInbox::bind(&config.endpoint, Welcome::new(), options).await?;
    let mut service = Service::new(
        Bounds {
            permits: config.max_requests,
            running: config.max_running,
            queued_tokens: config.max_queued_tokens,
        },
        Rc::new(keys),
    );
    let _ = started.send(Ok(()));
    let keys = service.keys.clone();
    let watch = async {
        keys.watch().await;
        // Without a file there is nothing to watch.
        pending::<()>().await;
    };
    tokio::pin!(watch);
    loop {
        tokio::select! {
            event = inbox.recv() => service.take(event, &mut inbox).await,
            order = orders.recv() => match order {
                Some(()) => keys.reload().await,
                None => break,
            },
            () = &mut watch => {}
        }
    }
    inbox.close("the server ends").await;
    Ok(())
}

/// The ledger behind its inbox.
pub(super) struct Service {
    books: Books,
    pub(super) keys: Rc<Keys>,
    /// Whoever holds a key that is gone from the file, or not there yet: without limits of its own.
    stranger: Rc<Tenant>,
}

impl Service {
    pub(super) fn new(bounds: Bounds, keys: Rc<Keys>) -> Self {
        Self {
            books: Books::new(Ledger::new(bounds)),
            keys,
            stranger: Tenant::new(Rules::default()),
        }
    }

    pub(super) async fn take(&mut self, event: Event, inbox: &mut impl Inbox) {
        match event {
            Event::Message {
                message: Message::Call(call),
                peer,
            } if call.method == METHOD => match serde_json::from_str::<Vec<Op>>(&call.arguments) {
                Ok(ops) => self.carry_out(peer, ops).await,
                Err(error) => tracing::error!(%error, "operations that cannot be read"),
            },
            Event::Message {
                message: Message::Call(call),
                peer,
            } => {
                let answer = reply(&call, self.look(&call));
                if let Err(error) = inbox.send(peer, &answer.into()) {
                    tracing::warn!(%error, method = call.method, "call not answered");
                }
            }
            Event::Message { message, .. } => {
                tracing::debug!(kind = ?message.kind(), "message that has no business here");
            }
            Event::Joined { hello, .. } => {
                tracing::debug!(role = hello.role, index = hello.index, "joined");
            }
            Event::Left { peer, reason } => {
                tracing::debug!(peer, reason, "left");
                self.books.left(peer, Instant::now());
            }
        }
        self.answer(inbox);
    }

    async fn carry_out(&mut self, worker: PeerId, ops: Vec<Op>) {
        for op in ops {
            let key = op.key();
            let mut tenant = self.keys.tenant(key);
            // A worker may have read the file before.
            if tenant.is_none() && self.keys.has_changed() {
                self.keys.reload().await;
                tenant = self.keys.tenant(key);
            }
            let tenant = tenant.unwrap_or_else(|| self.stranger.clone());
            self.books.apply(worker, op, &tenant, Instant::now());
        }
    }

    fn answer(&mut self, inbox: &mut impl Inbox) {
        for (worker, call, answer) in self.books.take_answers() {
            let value = match &answer {
                Ok(()) => String::new(),
                // Plain data has no way to fail.
                Err(refusal) => serde_json::to_string(&Told::from(refusal)).unwrap_or_default(),
            };
            let reply = Reply {
                tag: Default::default(),
                call,
                ok: answer.is_ok(),
                value,
            };
            // A worker that has left meanwhile gets no answer.
            if let Err(error) = inbox.send(worker, &reply.into()) {
                tracing::debug!(%error, worker, "an answer found no worker");
            }
        }
    }

    fn look(&self, call: &Call) -> Result<String, String> {
        let ledger = self.books.ledger();
        match call.method.as_str() {
            "stats" => Ok(serde_json::json!({
                "requests": ledger.claims().count(),
                "permits": ledger.permits_taken(),
                "queued_tokens": ledger.queued_tokens(),
                "waiting_turns": ledger.waiting_turns(),
            })
            .to_string()),
            other => Err(format!(
                "unknown method {other:?}; the ledger knows stats, and {METHOD} from entry workers"
            )),
        }
    }
}
