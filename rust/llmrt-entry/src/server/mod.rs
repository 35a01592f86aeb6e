//! The listening socket and its connections: protocol settings, limits and the orderly end.

mod certificates;
mod connection;
mod executor;
mod greeting;
mod handshake;
mod hangup;
mod head_timer;
mod listener;
mod peer;
mod socket;
mod stream;
mod tls;
mod wire;

pub use certificates::Certificates;
pub use executor::LocalExecutor;
pub use hangup::{Deadline, Hangup};
pub use listener::{Connections, adopt};
pub use peer::{Peer, Stake};
pub use stream::Listener;
pub use tls::TlsError;
pub use wire::{Wire, Written};
