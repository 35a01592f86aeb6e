//! The listening socket and its connections: protocol settings, limits and the orderly end.

mod connection;
mod executor;
mod hangup;
mod listener;
mod socket;

pub use executor::LocalExecutor;
pub use hangup::Hangup;
pub use listener::{Connections, adopt};
