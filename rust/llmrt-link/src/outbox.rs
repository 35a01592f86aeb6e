//! The sending end's protocol, without I/O: greeting, credit, window, liveness.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use llmrt_wire::{Dead, Heartbeat, Hello, Message, Ready, VERSION, greeting_version};
use tokio::sync::{Notify, mpsc, watch};

use crate::{Identity, LinkOptions, PeerState, SendError};

/// Messages from the peer that wait for their reader. Many requests that come at once get their answers of the ledger
/// at once, and one that was lost would be waited for.
const INCOMING: usize = 1 << 16;

/// What a queued message takes beside its bytes. It also keeps the count of messages in a window below the bound of
/// the transports' queues, so that a full window always shows first.
const OVERHEAD: usize = 1024;

/// Outgoing half of one connection.
pub trait Pipe: Send {
    /// Queues one frame without waiting; false when the connection is lost.
    fn push(&mut self, frame: Vec<u8>) -> bool;
}

/// How a connection ended.
#[derive(Debug)]
pub(crate) enum End {
    /// It broke, or the peer fell silent.
    Lost(String),
    /// The peer said that it ends or that it will not have us.
    Refused(String),
}

/// Bytes on their way, [`OVERHEAD`] included, and the heartbeats whose echo acknowledges them.
#[derive(Default)]
struct Window {
    sent: u64,
    acknowledged: u64,
    sequence: u64,
    /// Heartbeats without an echo: sequence, and `sent` when they left.
    marks: VecDeque<(u64, u64)>,
}

impl Window {
    fn has_room(&self, bytes: usize, limit: usize) -> bool {
        // A frame larger than the whole window passes alone.
        let open = self.sent - self.acknowledged;
        open == 0 || open + bytes as u64 <= limit as u64
    }

    /// Whether enough left since the last heartbeat that another one should ask for an acknowledgement.
    fn is_due(&self, limit: usize) -> bool {
        let marked = self.marks.back().map_or(self.acknowledged, |mark| mark.1);
        self.sent - marked >= limit as u64 / 4
    }

    fn mark(&mut self) -> u64 {
        self.sequence += 1;
        self.marks.push_back((self.sequence, self.sent));
        self.sequence
    }

    fn acknowledge(&mut self, sequence: u64) {
        while let Some(&(first, sent)) = self.marks.front() {
            if first > sequence {
                break;
            }
            self.acknowledged = sent;
            self.marks.pop_front();
        }
    }
}

/// What belongs to the current connection.
#[derive(Default)]
struct Lane {
    pipe: Option<Box<dyn Pipe>>,
    ready: bool,
    closed: bool,
    credit: u64,
    window: Window,
}

/// Protocol state that an outbox and its driver share.
pub(crate) struct Sender {
    identity: Identity,
    options: LinkOptions,
    lane: Mutex<Lane>,
    state: watch::Sender<PeerState>,
    /// Wakes the driver when a send found the connection lost.
    broken: Notify,
    incoming: mpsc::Sender<Message>,
    taken: Mutex<Option<mpsc::Receiver<Message>>>,
}

impl Sender {
    pub(crate) fn new(identity: Identity, options: LinkOptions) -> Arc<Self> {
        let (incoming, receiver) = mpsc::channel(INCOMING);
        Arc::new(Self {
            identity,
            options,
            lane: Mutex::default(),
            state: watch::Sender::new(PeerState::Connecting),
            broken: Notify::new(),
            incoming,
            taken: Mutex::new(Some(receiver)),
        })
    }

    pub(crate) fn options(&self) -> &LinkOptions {
        &self.options
    }

    pub(crate) fn state(&self) -> watch::Receiver<PeerState> {
        self.state.subscribe()
    }

    pub(crate) fn incoming(&self) -> Option<mpsc::Receiver<Message>> {
        self.taken
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Resolves when a send found the connection lost.
    pub(crate) async fn broken(&self) {
        self.broken.notified().await;
    }

    pub(crate) fn send(&self, message: &Message) -> Result<(), SendError> {
        let cost = credit_cost(message);
        {
            // Most refusals are known before the work of encoding.
            let lane = self.lane();
            if !lane.ready {
                return Err(SendError::NotReady);
            }
            if cost > lane.credit {
                return Err(SendError::Full);
            }
        }
        let frame = message.encode();
        let bytes = frame.len() + OVERHEAD;
        let mut lane = self.lane();
        if !lane.ready {
            return Err(SendError::NotReady);
        }
        let has_room = is_urgent(message) || lane.window.has_room(bytes, self.options.window);
        if cost > lane.credit || !has_room {
            return Err(SendError::Full);
        }
        lane.credit -= cost;
        lane.window.sent += bytes as u64;
        let delivered = lane.push(frame)
            && (!lane.window.is_due(self.options.window) || self.beat_on(&mut lane));
        if delivered {
            return Ok(());
        }
        lane.ready = false;
        drop(lane);
        self.broken.notify_one();
        Err(SendError::NotReady)
    }

    /// Takes over a fresh connection and greets on it, by the number `place` where the peer has given one.
    pub(crate) fn attach(&self, pipe: Box<dyn Pipe>, place: Option<u32>) {
        let hello = Message::from(Hello {
            version: VERSION,
            role: self.identity.role.clone(),
            index: place.unwrap_or(self.identity.index),
            incarnation: self.identity.incarnation,
            tag: Default::default(),
        });
        let mut lane = self.lane();
        if lane.closed {
            return;
        }
        *lane = Lane {
            pipe: Some(pipe),
            ..Lane::default()
        };
        lane.push(hello.encode());
    }

    /// Forgets the connection. Who neither reached the peer nor was refused by it stays `Connecting`.
    pub(crate) fn detach(&self, end: &End) {
        let (End::Lost(reason) | End::Refused(reason)) = end;
        let mut lane = self.lane();
        lane.pipe = None;
        lane.ready = false;
        if lane.closed {
            return;
        }
        drop(lane);
        let reached = self.state.borrow().is_ready();
        if reached || matches!(end, End::Refused(_)) {
            tracing::info!(role = self.identity.role, reason, "link lost");
            self.set_dead(reason);
        }
    }

    /// Whether the peer of the current connection has answered.
    pub(crate) fn is_ready(&self) -> bool {
        self.lane().ready
    }

    /// Whether the peer of the current connection has yet to answer.
    pub(crate) fn is_greeting(&self) -> bool {
        let lane = self.lane();
        lane.pipe.is_some() && !lane.ready
    }

    /// Asks the peer for a sign of life; false when the connection is lost.
    pub(crate) fn beat(&self) -> bool {
        self.beat_on(&mut self.lane())
    }

    fn beat_on(&self, lane: &mut Lane) -> bool {
        let beat = Message::from(Heartbeat {
            incarnation: self.identity.incarnation,
            sequence: lane.window.mark(),
            tag: Default::default(),
        });
        lane.push(beat.encode())
    }

    /// Handles one frame of the peer; an error ends the connection.
    pub(crate) fn handle(&self, raw: &[u8]) -> Result<(), String> {
        match Message::decode(raw) {
            Ok(Message::Ready(ready)) => self.welcomed(ready),
            Ok(Message::Dead(dead)) => Err(dead.reason),
            Ok(Message::Credit(credit)) => {
                let mut lane = self.lane();
                lane.credit = lane.credit.saturating_add(credit.count.into());
                Ok(())
            }
            Ok(Message::Heartbeat(beat)) => {
                self.lane().window.acknowledge(beat.sequence);
                Ok(())
            }
            Ok(message) => {
                if self.incoming.try_send(message).is_err() {
                    tracing::warn!("a message of the peer found no reader and was dropped");
                }
                Ok(())
            }
            Err(error) => match greeting_version(raw) {
                Some(version) if version != VERSION => Err(other_version(version)),
                _ => {
                    tracing::warn!(%error, "malformed frame dropped");
                    Ok(())
                }
            },
        }
    }

    fn welcomed(&self, ready: Ready) -> Result<(), String> {
        if ready.version != VERSION {
            return Err(other_version(ready.version));
        }
        let mut lane = self.lane();
        lane.ready = lane.pipe.is_some();
        lane.credit = ready.credit.into();
        drop(lane);
        self.state.send_replace(PeerState::Ready {
            incarnation: ready.incarnation,
            info: ready.info.into(),
        });
        Ok(())
    }

    /// Says `Dead` and refuses everything from now on.
    pub(crate) fn close(&self, reason: &str) {
        let mut lane = self.lane();
        if std::mem::replace(&mut lane.closed, true) {
            return;
        }
        let dead = Message::from(Dead {
            incarnation: self.identity.incarnation,
            reason: reason.to_owned(),
            tag: Default::default(),
        });
        lane.push(dead.encode());
        lane.pipe = None;
        lane.ready = false;
        drop(lane);
        self.set_dead(reason);
    }

    fn set_dead(&self, reason: &str) {
        self.state.send_replace(PeerState::Dead {
            reason: reason.into(),
        });
    }

    fn lane(&self) -> MutexGuard<'_, Lane> {
        self.lane.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lane {
    fn push(&mut self, frame: Vec<u8>) -> bool {
        self.pipe.as_mut().is_some_and(|pipe| pipe.push(frame))
    }
}

fn credit_cost(message: &Message) -> u64 {
    match message {
        Message::Submit(submit) => submit.requests.len() as u64,
        _ => 0,
    }
}

/// Whether the window must not hold a message back: it makes the peer do less.
fn is_urgent(message: &Message) -> bool {
    matches!(message, Message::Abort(_) | Message::Ended(_))
}

/// What both ends say about a peer of another version.
pub(crate) fn other_version(version: u16) -> String {
    format!(
        "the peer speaks wire version {version}, this process {VERSION}: run the same llmrt on both ends"
    )
}

#[cfg(test)]
#[path = "outbox_tests.rs"]
mod tests;
