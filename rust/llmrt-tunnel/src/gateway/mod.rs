//! The gateway: a process of the core's host that lets entry nodes of other hosts in.
//!
//! It binds the results endpoint of every place that a node can have, so that detokenizers find all entry workers
//! there, with or without a node behind them.

mod config;
mod door;
mod places;
mod requests;
mod slot;
#[cfg(test)]
mod tests;

use std::io;
use std::rc::Rc;

use llmrt_link::transport::{LinkOutbox, Listener};
use llmrt_link::zmq::{self, Router, ZmqInbox};
use llmrt_link::{ConfigError, Event, Identity, Inbox, LinkError, Outbox, Welcome, adopt_listener};
use llmrt_log::LogError;
use llmrt_wire::{Call, Message, Reply};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::Receiver;
use tokio::task::{LocalSet, spawn_local};

pub use config::Config;
use door::Door;
use places::Places;
use slot::Slot;

/// Why a gateway cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("cannot start: {0}")]
    Io(#[from] io::Error),
}

/// Serves until the supervisor calls `shutdown` or sends SIGUSR1. Blocks the calling thread.
///
/// # Errors
/// The configuration is refused, or an endpoint cannot be bound.
pub fn run(config_json: &str) -> Result<(), RunError> {
    let config = Config::from_json(config_json)?;
    let _flush = llmrt_log::init(&config.log)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::from_std(adopt_listener(config.listen_fd)?.into())?;
        // Not SIGTERM, which a service manager sends to all processes at once: there is work until the server has drained.
        let mut told = signal(SignalKind::user_defined1())?;
        let (control, status) = (config.control.clone(), config.status.clone());
        let identity = Identity::new("gateway", 0);
        let options = config.link.options();
        let status = ZmqInbox::bind(&status, Welcome::new(), options).await?;
        let places = open(config, listener).await?;
        // Last, as it says that everything is there.
        let control = zmq::connect(&control, identity, options)?;
        tokio::select! {
            () = look_in(status, &places) => {}
            () = obey(&control, &places) => {}
            _ = told.recv() => {}
        }
        tracing::info!("the gateway ends");
        control.close("the gateway ends");
        Ok(())
    })
}

/// Binds every place and opens the door.
async fn open(config: Config, listener: TcpListener) -> Result<Rc<Places>, RunError> {
    let config = Rc::new(config);
    let mut guests = Vec::new();
    let places = Rc::new(Places::new(&config.slots));
    for slot in &config.slots {
        let (router, _) = Router::bind(&slot.results).await?;
        guests.push(seat(slot.worker, router, config.clone(), places.clone()));
    }
    let door = Door::new(config, places.clone(), guests);
    spawn_local(async move { door.open(listener).await });
    Ok(places)
}

/// Serves one place; returns where to send its nodes.
fn seat<L: Listener + 'static>(
    worker: u16,
    listener: L,
    config: Rc<Config>,
    places: Rc<Places>,
) -> slot::Guests {
    let (guests, arriving) = tokio::sync::mpsc::channel(1);
    let slot = Slot::new(worker, listener, config.requests.clone(), places);
    spawn_local(slot.serve(arriving));
    guests
}

/// Answers those who look in.
async fn look_in(mut inbox: impl Inbox, places: &Places) {
    loop {
        if let Event::Message {
            peer,
            message: Message::Call(call),
        } = inbox.recv().await
            && let Err(error) = inbox.send(peer, &answer(&call, places).into())
        {
            tracing::warn!(%error, method = call.method, "call not answered");
        }
    }
}

/// Answers the supervisor, until it asks for the end.
async fn obey(control: &LinkOutbox, places: &Places) {
    let mut calls: Option<Receiver<Message>> = control.incoming();
    while let Some(calls) = &mut calls {
        match calls.recv().await {
            Some(Message::Call(call)) if call.method == "shutdown" => return,
            Some(Message::Call(call)) => {
                if let Err(error) = control.send(&answer(&call, places).into()) {
                    tracing::warn!(%error, method = call.method, "call not answered");
                }
            }
            Some(_) => {}
            None => return,
        }
    }
}

fn answer(call: &Call, places: &Places) -> Reply {
    let ok = call.method == "stats";
    let value = if ok {
        places.stats().to_string()
    } else {
        format!("unknown method {:?}; a gateway knows stats", call.method)
    };
    Reply {
        tag: Default::default(),
        call: call.call,
        ok,
        value,
    }
}
