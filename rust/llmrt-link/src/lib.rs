//! ZMQ links between llmrt's processes, behind traits, with an in-memory twin.
//!
//! Every receiver binds an [`Inbox`]; senders connect an [`Outbox`]. An outbox greets with `Hello`, waits for
//! `Ready`, answers for liveness with heartbeats and, when the peer dies, rebuilds its socket until a successor
//! answers. [`zmq`] holds the links between processes, [`memory`] the same links within one: both run the same
//! protocol and the same codec, only the transport differs.
//!
//! # Bounds
//! - `Submit` costs one credit per request. The receiver grants credit; without it `send` answers
//!   [`SendError::Full`] at once.
//! - Messages share a window of unacknowledged bytes ([`LinkOptions::window`]). The echo of a heartbeat acknowledges
//!   whatever was sent before it, so a peer that stops reading bounds its sender's memory.
//! - `Abort` and `Ended` are never refused by a peer that is ready: whoever cannot stop a request pays for all of it.
//!   The requests that they name were let in by credit, which bounds them too.
//! - A link is one ordered stream: an abort arrives behind its own request, never ahead of it.
//!
//! # Cost
//! Between a socket and [`Inbox::recv`] there is no task and no channel, and [`Outbox::send`] writes to the
//! connection's queue on the caller's stack. An idle link wakes once per heartbeat.

mod descriptor;
mod driver;
mod inbox;
pub mod memory;
mod options;
mod outbox;
mod settings;
pub mod transport;
pub mod zmq;

use std::future::Future;
use std::sync::Arc;

use llmrt_wire::Message;
use tokio::sync::{mpsc, watch};

pub use descriptor::adopt_listener;
pub use options::{Identity, LinkOptions, Welcome};
pub use settings::{ConfigError, LinkTimes, Rule, Topology, read_config};
pub use transport::LinkOutbox;

/// What an outbox knows of its peer.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerState {
    /// No peer has answered yet; a receiver that is bound but still starts is waited for.
    Connecting,
    /// The peer answered; `info` is its JSON description (see `llmrt_wire::Ready`).
    Ready { incarnation: u64, info: Arc<str> },
    /// The peer said that it ends, vanished, fell silent or refused us; the outbox keeps trying.
    Dead { reason: Arc<str> },
}

impl PeerState {
    /// Whether messages may be sent now.
    pub fn is_ready(&self) -> bool {
        matches!(self, Self::Ready { .. })
    }
}

/// Why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Out of credit or window: try again later or refuse the work.
    #[error("the receiver's queue is full")]
    Full,
    /// The peer is not ready.
    #[error("the receiver is not connected")]
    NotReady,
}

/// Why a link could not be made.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Not an endpoint of the form `ipc:///path` or `tcp://host:port`.
    #[error("{endpoint:?} is not an endpoint: {reason}")]
    Endpoint { endpoint: String, reason: String },
    /// The endpoint cannot be bound; most often somebody else listens there.
    #[error("cannot bind {endpoint}: {reason}")]
    Bind { endpoint: String, reason: String },
}

/// Sending end of a link. Never blocks; usable from any thread.
pub trait Outbox: Send + Sync {
    /// Queues a message. `Submit` needs one credit per request, `Abort` and `Ended` always find room.
    fn send(&self, message: &Message) -> Result<(), SendError>;

    /// The peer's state, now and as it changes.
    fn state(&self) -> watch::Receiver<PeerState>;

    /// Whether a connection stands whose peer has not answered the greeting yet. The peer itself may count us as joined
    /// already.
    fn is_greeting(&self) -> bool;

    /// Messages that the peer sends back (calls and replies). The first call takes the receiver; without a
    /// taker they are dropped.
    fn incoming(&self) -> Option<mpsc::Receiver<Message>>;

    /// Says `Dead` to the peer and stops for good. Dropping the outbox does the same.
    fn close(&self, reason: &str);
}

/// Receiving end of a link.
pub trait Inbox: Send {
    /// The next event. Cancel-safe: an event is lost only when it was returned.
    fn recv(&mut self) -> impl Future<Output = Event> + Send;

    /// Queues a message to a peer that has joined.
    fn send(&mut self, peer: PeerId, message: &Message) -> Result<(), SendError>;

    /// Says `Dead` to every peer, lets the notices leave, and unbinds.
    fn close(self, reason: &str) -> impl Future<Output = ()> + Send;
}

/// A peer of an inbox, from its `Joined` to its `Left`; never used twice.
pub type PeerId = u64;

/// What happens at an inbox.
#[expect(
    clippy::large_enum_variant,
    reason = "a box would cost every frame an allocation"
)]
#[derive(Debug)]
pub enum Event {
    /// A peer has greeted (it was answered with `Ready` already).
    Joined {
        peer: PeerId,
        hello: llmrt_wire::Hello,
    },
    /// A message other than greetings and heartbeats.
    Message { peer: PeerId, message: Message },
    /// The peer said that it ends, vanished, fell silent, or was replaced by a successor.
    Left { peer: PeerId, reason: String },
}
