//! The listening socket and its connections: protocol settings, limits and the orderly end.

mod connection;
mod executor;
mod hangup;
mod head_timer;
mod listener;
mod socket;

pub use executor::LocalExecutor;
pub use hangup::{Deadline, Hangup};
pub use listener::{Connections, adopt};
