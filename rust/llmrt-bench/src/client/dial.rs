//! TCP connections to the one server of a run.

use std::cell::Cell;
use std::net::{SocketAddr, ToSocketAddrs};

use tokio::net::TcpStream;

use super::Fault;
use crate::config::{ConfigError, Target};

/// Addresses of the server, looked up once.
pub struct Dialer {
    addresses: Vec<SocketAddr>,
    opened: Cell<usize>,
}

impl Dialer {
    /// # Errors
    /// The host has no address.
    pub fn new(target: &Target) -> Result<Self, ConfigError> {
        let Target { host, port, .. } = target;
        let addresses = (host.as_str(), *port)
            .to_socket_addrs()
            .map_err(|e| ConfigError(format!("host {host:?} has no address: {e}")))?
            .collect();
        Ok(Self {
            addresses,
            opened: Cell::new(0),
        })
    }

    pub fn opened(&self) -> usize {
        self.opened.get()
    }

    /// # Errors
    /// `connect`.
    pub async fn dial(&self) -> Result<TcpStream, Fault> {
        let stream = TcpStream::connect(&self.addresses[..])
            .await
            .and_then(|stream| stream.set_nodelay(true).map(|()| stream))
            .map_err(|e| Fault::new("connect", e))?;
        self.opened.set(self.opened.get() + 1);
        Ok(stream)
    }
}
