//! The supervisor, as a worker in a process of its own sees it: its orders, and calls to it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use llmrt_link::Outbox;
use llmrt_wire::{Call, Message, Reply};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::signal::unix::Signal;
use tokio::sync::mpsc::{UnboundedSender, WeakUnboundedSender};

use crate::calls::Calls;
use crate::shard::{Command, CoreDown, Shard};

/// How long the supervisor may take to ask all workers.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The control link.
pub struct Control {
    outbox: Arc<dyn Outbox>,
    calls: Calls,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ShutdownArguments {
    timeout: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CoreDownArguments {
    reason: String,
    scheduler: Option<u64>,
    back_in: Option<f64>,
}

impl Control {
    pub fn new(outbox: Arc<dyn Outbox>) -> Self {
        Self {
            calls: Calls::new(outbox.clone()),
            outbox,
        }
    }

    /// Asks the supervisor; `None` when no good answer came in time.
    pub async fn call(&self, method: &str, arguments: &str) -> Option<String> {
        self.calls.call(method, arguments, CALL_TIMEOUT).await
    }
}

/// Takes what comes from the supervisor. Commands go the way of those of an owner in the same process.
pub async fn obey(shard: Rc<Shard>, commands: WeakUnboundedSender<Command>) {
    let Some(control) = &shard.control else {
        return;
    };
    let Some(mut incoming) = control.outbox.incoming() else {
        return;
    };
    while let (Some(message), Some(commands)) = (incoming.recv().await, commands.upgrade()) {
        match message {
            Message::Reply(reply) => control.calls.answered(reply),
            Message::Call(call) => {
                let result = carry_out(&shard, &call, &commands);
                if let Err(error) = control.outbox.send(&reply(&call, result).into()) {
                    tracing::warn!(%error, method = call.method, "call not answered");
                }
            }
            other => tracing::debug!(kind = ?other.kind(), "message that has no business here"),
        }
    }
}

fn carry_out(
    shard: &Shard,
    call: &Call,
    commands: &UnboundedSender<Command>,
) -> Result<String, String> {
    let command = match call.method.as_str() {
        "metrics" => return Ok(shard.metrics.render()),
        "shutdown" => {
            let ShutdownArguments { timeout } = read(call)?;
            Command::Shutdown {
                timeout: seconds(timeout)?,
            }
        }
        "reload" => Command::Reload,
        "core_down" => {
            let told: CoreDownArguments = read(call)?;
            Command::CoreDown(CoreDown {
                reason: told.reason,
                scheduler: told.scheduler,
                back_in: told.back_in.map(seconds).transpose()?,
            })
        }
        _ => return look(shard, call),
    };
    // Fails only when the worker has ended.
    commands
        .send(command)
        .map_err(|_| "the worker has ended".to_owned())?;
    Ok("null".to_owned())
}

/// Answers a call that only looks: anybody may make it.
pub fn look(shard: &Shard, call: &Call) -> Result<String, String> {
    match call.method.as_str() {
        "stats" => Ok(shard.stats().to_string()),
        other => Err(format!(
            "unknown method {other:?}; an entry worker knows stats, and from its supervisor metrics, core_down, reload \
             and shutdown"
        )),
    }
}

pub fn reply(call: &Call, result: Result<String, String>) -> Reply {
    let ok = result.is_ok();
    Reply {
        call: call.call,
        ok,
        value: result.unwrap_or_else(|error| error),
        tag: Default::default(),
    }
}

fn read<T: DeserializeOwned>(call: &Call) -> Result<T, String> {
    serde_json::from_str(&call.arguments)
        .map_err(|error| format!("arguments of {}: {error}", call.method))
}

fn seconds(value: f64) -> Result<Duration, String> {
    Duration::try_from_secs_f64(value).map_err(|error| error.to_string())
}

/// Ends the worker on SIGTERM: open requests get `patience`, and no more time at all when the signal comes again.
pub async fn end_on(
    mut terminated: Signal,
    patience: Duration,
    commands: WeakUnboundedSender<Command>,
) {
    let mut timeout = patience;
    while terminated.recv().await.is_some() {
        let Some(commands) = commands.upgrade() else {
            return;
        };
        // Fails only when the worker has ended.
        let _ = commands.send(Command::Shutdown { timeout });
        timeout = Duration::ZERO;
    }
}
