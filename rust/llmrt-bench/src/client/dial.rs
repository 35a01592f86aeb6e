//! Connections to the one server of a run.

use std::cell::Cell;
use std::net::{SocketAddr, ToSocketAddrs};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::{Fault, tls};
use crate::config::{BenchConfig, ConfigError, Target};

/// What carries the bytes of a connection.
pub trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// Addresses of the server, looked up once.
pub struct Dialer {
    addresses: Vec<SocketAddr>,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    http2: bool,
    opened: Cell<usize>,
}

impl Dialer {
    /// # Errors
    /// The host has no address, or nobody is trusted to be it.
    pub fn new(config: &BenchConfig, target: &Target) -> Result<Self, ConfigError> {
        let Target { host, port, .. } = target;
        let addresses = (host.as_str(), *port)
            .to_socket_addrs()
            .map_err(|e| ConfigError(format!("host {host:?} has no address: {e}")))?
            .collect();
        let tls = if target.secure {
            let name = ServerName::try_from(host.clone())
                .map_err(|e| ConfigError(format!("host {host:?}: {e}")))?;
            let trusted = config.ssl_ca_certs.as_deref();
            Some((tls::connector(trusted, config.http2)?, name))
        } else {
            None
        };
        Ok(Self {
            addresses,
            tls,
            http2: config.http2,
            opened: Cell::new(0),
        })
    }

    pub fn opened(&self) -> usize {
        self.opened.get()
    }

    /// # Errors
    /// `connect`.
    pub async fn dial(&self) -> Result<Box<dyn Stream>, Fault> {
        let fault = |e: std::io::Error| Fault::new("connect", e);
        let stream = TcpStream::connect(&self.addresses[..])
            .await
            .and_then(|stream| stream.set_nodelay(true).map(|()| stream))
            .map_err(fault)?;
        let stream: Box<dyn Stream> = match &self.tls {
            None => Box::new(stream),
            Some((connector, name)) => {
                let stream = connector
                    .connect(name.clone(), stream)
                    .await
                    .map_err(fault)?;
                if self.http2 && stream.get_ref().1.alpn_protocol() != Some(b"h2") {
                    let message = "the server does not speak HTTP/2 over TLS; leave --http2 out";
                    return Err(Fault::new("connect", message));
                }
                Box::new(stream)
            }
        };
        self.opened.set(self.opened.get() + 1);
        Ok(stream)
    }
}
