//! An entry worker: a shard on a thread of its own, started, stopped and waited for from outside.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use llmrt_link::{ConfigError, LinkError};
use llmrt_log::LogError;
use llmrt_tunnel::{Joined, Node};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{
    UnboundedReceiver, UnboundedSender, WeakUnboundedSender, unbounded_channel,
};
use tokio::sync::oneshot;
use tokio::task::{LocalSet, spawn_local};

use crate::config::{EntryConfig, PROCESS};
use crate::control;
use crate::links;
use crate::local::LocalClient;
use crate::prompt::{PromptError, Prompts};
use crate::server::{self, Certificates, TlsError};
use crate::shard::{Command, CoreDown, Shard};
use crate::tenants::{KeyFileError, Keys};

/// Why a worker did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Prompts(#[from] PromptError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Keys(#[from] KeyFileError),
    #[error("cannot listen: {0}")]
    Listen(std::io::Error),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("cannot go on with the core's connection: {0}")]
    Join(std::io::Error),
    #[error("route table: {0}")]
    Routes(#[from] matchit::InsertError),
    #[error("cannot listen to signals: {0}")]
    Signal(std::io::Error),
    #[error("cannot start the I/O thread: {0}")]
    Thread(std::io::Error),
    #[error("the I/O thread ended while it started")]
    Lost,
}

/// Looks whether a worker could use the certificates and keys of `tls`, the JSON form of [`crate::config::Tls`].
///
/// # Errors
/// It is no such form, or its files cannot be used.
pub fn check_tls(tls: &str) -> Result<(), StartError> {
    let tls = serde_json::from_str(tls).map_err(|error| ConfigError::new(PROCESS, error))?;
    Certificates::load(&tls, true)?;
    Ok(())
}

/// Looks whether a worker could use the keys in `file`; `priorities` says whether the scheduler knows any.
///
/// # Errors
/// It could not.
pub fn check_keys(file: &Path, priorities: bool) -> Result<(), StartError> {
    Ok(Keys::check(file, priorities)?)
}

/// A running entry worker. Dropping it asks the worker to end without waiting for open requests, which are told so;
/// [`Self::wait`] beforehand says when the thread has ended.
pub struct EntryWorker {
    commands: UnboundedSender<Command>,
    ended: Arc<Ended>,
}

impl EntryWorker {
    /// Loads the tokenizer, opens the links and takes over the listening socket; returns when connections are
    /// accepted.
    ///
    /// # Errors
    /// A file, endpoint or descriptor of the configuration is not usable.
    pub fn start(config: EntryConfig) -> Result<Self, StartError> {
        Self::start_with(config, None)
    }

    /// The same for a node that has `joined` a core on another host. It ends by itself when that core will not have it
    /// any more.
    ///
    /// # Errors
    /// As above.
    pub fn start_joined(config: EntryConfig, joined: Joined) -> Result<Self, StartError> {
        Self::start_with(config, Some(joined))
    }

    fn start_with(config: EntryConfig, joined: Option<Joined>) -> Result<Self, StartError> {
        let flush = llmrt_log::init(&config.log)?;
        let prompts = Prompts::load(&config)?;
        let (commands, taken) = unbounded_channel();
        let (started, start) = mpsc::channel();
        let ended = Arc::new(Ended::default());
        let flag = EndFlag(ended.clone());
        let sender = commands.downgrade();
        thread::Builder::new()
            .name("llmrt-entry".to_owned())
            .spawn(move || {
                // In this order: who has waited for the end finds the last lines written.
                let (_flag, _flush) = (flag, flush);
                run(config, joined, prompts, sender, taken, &started);
            })
            .map_err(StartError::Thread)?;
        start.recv().unwrap_or(Err(StartError::Lost))?;
        Ok(Self { commands, ended })
    }

    /// Asks for an orderly end: no new requests from now on, `timeout` for those that are open. Returns at once. A
    /// second call replaces the timeout of the first.
    pub fn shutdown(&self, timeout: Duration) {
        self.command(Command::Shutdown { timeout });
    }

    /// A process of the core has died: ends the open requests of a scheduler; new ones are refused until a new core has
    /// answered.
    pub fn core_down(&self, down: CoreDown) {
        self.command(Command::CoreDown(down));
    }

    /// Reads the certificates and the file of API keys again, for connections and requests from now on. What cannot be
    /// used is refused, with a line in the log, and what was loaded before stays.
    pub fn reload(&self) {
        self.command(Command::Reload);
    }

    /// A way to make requests from inside this process.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn client(&self) -> io::Result<LocalClient> {
        LocalClient::new(self.commands.clone())
    }

    fn command(&self, command: Command) {
        // A worker that has ended needs no command.
        let _ = self.commands.send(command);
    }

    /// Waits until the worker has ended; false when `timeout` passed before.
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        self.ended.wait(timeout)
    }

    /// Its end, to be waited for while somebody else has the worker.
    pub fn end(&self) -> Arc<Ended> {
        self.ended.clone()
    }
}

impl Drop for EntryWorker {
    fn drop(&mut self) {
        // Said aloud: a `LocalClient` that lives on keeps the channel open.
        self.shutdown(Duration::ZERO);
    }
}

/// Serves as a worker in a process of its own, until the supervisor or SIGTERM ends it. Blocks the calling thread.
///
/// # Errors
/// The configuration is refused, or the worker cannot start.
pub fn serve(config_json: &str) -> Result<(), StartError> {
    let config = EntryConfig::from_json(config_json)?;
    if config.supervisor.is_none() {
        let (name, rule) = ("supervisor", "there, in a process of its own");
        return Err(ConfigError::rule(PROCESS, name, rule).into());
    }
    EntryWorker::start(config)?.wait(None);
    Ok(())
}

fn run(
    config: EntryConfig,
    joined: Option<Joined>,
    prompts: Prompts,
    sender: WeakUnboundedSender<Command>,
    commands: UnboundedReceiver<Command>,
    started: &mpsc::Sender<Result<(), StartError>>,
) {
    let runtime = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return drop(started.send(Err(StartError::Thread(error)))),
    };
    // On every line of this thread: which of the workers says it. An error span, so that no level leaves it out.
    let worker = config.worker;
    let _span =
        (config.supervisor.is_some()).then(|| tracing::error_span!("entry", worker).entered());
    let tasks = LocalSet::new();
    let served = tasks.block_on(&runtime, async {
        let (links, results, mut node) = links::connect(&config, joined).await?;
        let outboxes = links.outboxes();
        let patience = config
            .supervisor
            .as_ref()
            .map(|supervisor| supervisor.shutdown_timeout());
        let listener = config.listen_fd.map(server::adopt).transpose();
        let listener = listener.map_err(StartError::Listen)?;
        let http2 = config.http2.enabled;
        let certificates = config
            .tls
            .as_ref()
            .map(|tls| Certificates::load(tls, http2));
        let keys = Keys::load(config.keys())?;
        let shard = Shard::new(config, keys, prompts, links, certificates.transpose()?)?;
        if let Some(patience) = patience {
            spawn_local(control::obey(shard.clone(), sender.clone()));
            let terminated = signal(SignalKind::terminate()).map_err(StartError::Signal)?;
            spawn_local(control::end_on(terminated, patience, sender.clone()));
        }
        if let Some(fault) = node.as_mut().and_then(Node::fault) {
            spawn_local(end_without_core(fault, sender));
        }
        // Nobody waits for it any more only when the starting thread was killed.
        let _ = started.send(Ok(()));
        shard.run(listener, results, commands).await;
        for outbox in outboxes {
            outbox.close("the entry worker has ended");
        }
        Ok(())
    });
    if let Err(error) = served {
        let _ = started.send(Err(error));
    }
}

/// Ends a node whose core will not have it any more, with the reason in the log.
async fn end_without_core(
    fault: oneshot::Receiver<String>,
    commands: WeakUnboundedSender<Command>,
) {
    if let (Ok(reason), Some(commands)) = (fault.await, commands.upgrade()) {
        tracing::error!(reason, "the node ends");
        // Fails only when the worker has ended.
        let _ = commands.send(Command::Shutdown {
            timeout: Duration::ZERO,
        });
    }
}

/// Whether the thread has ended, for any number of waiters.
#[derive(Default)]
pub struct Ended {
    flag: Mutex<bool>,
    changed: Condvar,
}

impl Ended {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.flag.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it has; false when `timeout` passed before.
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        let ended = self.lock();
        match timeout {
            None => *self
                .changed
                .wait_while(ended, |ended| !*ended)
                .unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                *self
                    .changed
                    .wait_timeout_while(ended, timeout, |ended| !*ended)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
        }
    }
}

/// Sets [`Ended`] however the thread ends.
struct EndFlag(Arc<Ended>);

impl Drop for EndFlag {
    fn drop(&mut self) {
        *self.0.lock() = true;
        self.0.changed.notify_all();
    }
}
