//! The loop: events of the links in, messages of the state out.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use llmrt_link::{Event, Inbox, Outbox, PeerId};
use llmrt_wire::{Call, Ended, Message, Reply, RequestId, TextFrame};
use tokio::sync::mpsc::Receiver;
use tokio::time::{MissedTickBehavior, interval};

use crate::control::{Then, answer};
use crate::deliver::Delivery;
use crate::state::State;

/// Pause between two attempts to reach somebody who waits for a message.
const RETRY: Duration = Duration::from_millis(100);

/// Where messages go. Outboxes of entry workers stand at the workers' numbers.
pub struct Links {
    pub entries: Vec<Arc<dyn Outbox>>,
    pub scheduler: Arc<dyn Outbox>,
    pub control: Arc<dyn Outbox>,
}

/// Serves until the supervisor calls `shutdown` or `stop` is done; then says so on every link.
pub async fn serve(
    state: State,
    mut inbox: impl Inbox,
    links: Links,
    stop: impl Future<Output = ()>,
) {
    let mut calls = links.control.incoming();
    let mut server = Server {
        state,
        delivery: Delivery::new(links.entries.clone()),
        links,
        core: None,
        ended: Vec::new(),
    };
    let mut stop = pin!(stop);
    // Outside the loop: steady traffic must not put the next attempt off again and again.
    let mut retry = interval(RETRY);
    retry.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let reason = loop {
        tokio::select! {
            event = inbox.recv() => match event {
                Event::Message { peer, message: Message::Call(call) } => {
                    let reply = server.look(&call);
                    if let Err(error) = inbox.send(peer, &reply.into()) {
                        tracing::warn!(%error, method = call.method, "call not answered");
                    }
                }
                event => server.event(event),
            },
            Some(call) = next_call(&mut calls) => {
                if server.call(call) == Then::ShutDown {
                    break "shut down";
                }
            }
            _ = retry.tick(), if server.owes() => server.settle(),
            () = &mut stop => break "the server ends",
        }
    };
    tracing::info!(reason, "detokenizer ends");
    server.links.close(reason);
    inbox.close(reason).await;
}

async fn next_call(calls: &mut Option<Receiver<Message>>) -> Option<Message> {
    match calls {
        Some(calls) => calls.recv().await,
        None => None,
    }
}

impl Links {
    fn close(&self, reason: &str) {
        for outbox in self.entries.iter().chain([&self.scheduler, &self.control]) {
            outbox.close(reason);
        }
    }
}

struct Server {
    state: State,
    delivery: Delivery,
    links: Links,
    /// The scheduler whose requests are open.
    core: Option<PeerId>,
    /// Ended requests of which the scheduler has not been told.
    ended: Vec<RequestId>,
}

impl Server {
    fn event(&mut self, event: Event) {
        match event {
            Event::Joined { peer, hello } if hello.role == "scheduler" => self.joined(peer),
            Event::Joined { hello, .. } => tracing::debug!(role = hello.role, "peer joined"),
            Event::Message {
                peer,
                message: Message::TokenFrame(frame),
            } => {
                if self.core == Some(peer) {
                    let (frames, ended) = self.state.step(frame);
                    self.send(frames, ended.ids);
                } else {
                    tracing::warn!(
                        step = frame.step,
                        "token frame of somebody else than the scheduler dropped"
                    );
                }
            }
            Event::Message { message, .. } => {
                tracing::warn!(kind = ?message.kind(), "message that a detokenizer does not take dropped");
            }
            Event::Left { peer, reason } => {
                if self.core == Some(peer) {
                    tracing::info!(reason, "scheduler left");
                    self.core = None;
                    self.fail_all();
                }
            }
        }
    }

    fn joined(&mut self, peer: PeerId) {
        if self.core.replace(peer).is_some() {
            self.fail_all();
        }
    }

    /// The scheduler is gone: another one knows nothing of its requests, and it gives them up itself when only the link
    /// broke. Frames in between are lost, so no text could go on.
    fn fail_all(&mut self) {
        let frames = self
            .state
            .fail_all(503, "the engine was lost while it worked on this request");
        self.ended.clear();
        self.delivery.send(frames, &mut self.state);
    }

    fn send(&mut self, frames: Vec<(u16, TextFrame)>, ended: Vec<RequestId>) {
        self.ended.extend(ended);
        self.ended
            .extend(self.delivery.send(frames, &mut self.state));
        self.tell_ended();
    }

    /// Tells the scheduler what it has not been told yet; until then it generates what nobody reads.
    fn tell_ended(&mut self) {
        if self.ended.is_empty() {
            return;
        }
        let message = Ended {
            tag: Default::default(),
            ids: self.ended.clone(),
        };
        match self.links.scheduler.send(&message.into()) {
            Ok(()) => self.ended.clear(),
            Err(error) => tracing::debug!(%error, "scheduler not told of ended requests yet"),
        }
    }

    /// Whether somebody who may come back waits for a message.
    fn owes(&self) -> bool {
        self.delivery.owes() || (self.core.is_some() && !self.ended.is_empty())
    }

    fn settle(&mut self) {
        self.delivery.settle_all();
        self.tell_ended();
    }

    /// Answers a call on the tokens link, where only looking is allowed.
    fn look(&self, call: &Call) -> Reply {
        let (reply, then) = answer(call, &self.state.stats());
        match then {
            Then::GoOn => reply,
            Then::ShutDown => Reply {
                ok: false,
                value: "only the supervisor may shut a detokenizer down".to_owned(),
                ..reply
            },
        }
    }

    fn call(&mut self, message: Message) -> Then {
        let Message::Call(call) = message else {
            tracing::warn!(kind = ?message.kind(), "message that a detokenizer does not take dropped");
            return Then::GoOn;
        };
        let (reply, then) = answer(&call, &self.state.stats());
        if let Err(error) = self.links.control.send(&reply.into()) {
            tracing::warn!(%error, method = call.method, "call not answered");
        }
        then
    }
}
