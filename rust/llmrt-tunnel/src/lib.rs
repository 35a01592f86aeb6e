//! The tunnel between a core and entry nodes on other hosts: one TCP connection for each node, which carries its links.
//!
//! ```text
//! scheduler ◀── DEALER ──┐                                  ┌── LinkOutbox ◀── entry worker
//!                        GATEWAY ══ Noise over one TCP port ══ NODE
//! detokenizers ─ ROUTER ─┘                                  └── LinkInbox ──▶ entry worker
//! ```
//!
//! # Layers
//! - [`noise`]: `Noise_NNpsk0` with a key made from the shared secret. Both ends prove that they know it, whatever
//!   follows is encrypted, and a piece that is changed, left out, repeated or out of order ends the connection.
//! - [`record`]: what the pieces carry, end to end: frames of links on channels.
//! - The links themselves (`llmrt-link`) know nothing of it: greeting, credit, window and heartbeats stay between the
//!   entry worker of the node and the processes of the core. The [`gateway`] copies their frames.
//!
//! # Bounds
//! - Who has not proved itself gets one message of fixed size, a deadline, and one of a few places.
//! - What waits for a peer that does not read is bounded (64 MiB); beyond it the connection ends.

pub mod gateway;
mod join;
mod line;
mod node;
mod noise;
mod outgoing;
mod record;
mod secret;
mod session;

pub use join::{JoinError, Joined, Target, Welcome};
pub use node::{Node, NodeInbox, NodeOutbox};
pub use secret::{Secret, SecretError};

/// Version of the tunnel. Both ends must speak the same, and the same version of the links' messages.
pub const VERSION: u16 = 1;
