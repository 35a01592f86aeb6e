//! ZMQ links between llmrt's processes, behind traits, with an in-memory twin.
//!
//! Every receiver binds its [`Inbox`]; senders connect an [`Outbox`]. An outbox greets with `Hello`, waits for
//! `Ready`, answers for liveness with heartbeats and, when the peer dies, rebuilds its socket until a successor
//! answers. Messages that cost credit wait for it; aborts and control messages never do.

use std::sync::Arc;

use llmrt_wire::Message;
use tokio::sync::watch;

/// What an outbox knows of its peer.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerState {
    /// Not greeted yet, or rebuilding after a loss.
    Connecting,
    /// The peer answered; `info` is its JSON description (see `llmrt_wire::Ready`).
    Ready { incarnation: u64, info: Arc<str> },
    /// The peer said that it ends, vanished, or missed its heartbeats; the outbox keeps trying.
    Dead { reason: Arc<str> },
}

/// Why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Out of credit: try again later or refuse the work.
    #[error("the receiver's queue is full")]
    Full,
    /// The peer is not ready.
    #[error("the receiver is not connected")]
    NotReady,
}

/// Sending end of a link. Cheap to clone through `Arc`; never blocks.
pub trait Outbox: Send + Sync {
    /// Queues a message. `Submit` needs one credit per request; every other kind needs none.
    fn send(&self, message: Message) -> Result<(), SendError>;
    /// The peer's state, now and as it changes.
    fn state(&self) -> watch::Receiver<PeerState>;
}

/// A connected peer of an inbox: stable for the peer's incarnation.
pub type PeerId = u64;

/// What happens at an inbox.
#[derive(Debug)]
pub enum Event {
    /// A peer has greeted (it was answered with `Ready` already).
    Joined { peer: PeerId, hello: llmrt_wire::Hello },
    /// A message other than greetings, heartbeats and credit.
    Message { peer: PeerId, message: Message },
    /// The peer said that it ends, or was replaced by a successor.
    Left { peer: PeerId, reason: String },
}
