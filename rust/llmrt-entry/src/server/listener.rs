//! Accepting connections, up to a cap.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::service::Service;
use hyper::{Request, Response};
use llmrt_link::adopt_listener;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use super::certificates::Certificates;
use super::connection::{Protocols, draining};
use super::handshake::secure;
use super::hangup::Carrier;
use super::peer::Peer;
use super::socket::{Patience, Socket};
use super::stream::{Listener, Plain};
use crate::config::EntryConfig;

/// Takes over the descriptor of a listening socket, which is closed with the worker. Must be called within the runtime.
///
/// # Errors
/// The descriptor is not open or not a socket that listens; then it is left alone.
pub fn adopt(fd: i32) -> io::Result<Listener> {
    let socket = socket2::Socket::from(adopt_listener(fd)?);
    Ok(if socket.local_addr()?.is_unix() {
        Listener::Unix(UnixListener::from_std(socket.into())?)
    } else {
        Listener::Tcp(TcpListener::from_std(socket.into())?)
    })
}

/// The open connections of a shard.
pub struct Connections {
    protocols: Rc<Protocols>,
    slots: Arc<Semaphore>,
    cap: u32,
    open: Rc<Cell<usize>>,
    patience: Patience,
    certificates: Option<Rc<Certificates>>,
    drain: watch::Sender<bool>,
    writes: Rc<Cell<u64>>,
}

impl Connections {
    /// Connections speak TLS where there are `certificates`.
    pub fn new(config: &EntryConfig, certificates: Option<Certificates>) -> Self {
        let limits = &config.limits;
        let cap = limits.max_connections.min(Semaphore::MAX_PERMITS) as u32;
        Self {
            protocols: Rc::new(Protocols::new(config)),
            slots: Arc::new(Semaphore::new(cap as usize)),
            cap,
            open: Rc::default(),
            patience: Patience {
                greeting: limits.header_timeout(),
                stall: limits.stall_timeout(),
            },
            certificates: certificates.map(Rc::new),
            drain: watch::Sender::new(false),
            writes: Rc::default(),
        }
    }

    /// Connections that are open now.
    pub fn open(&self) -> usize {
        self.open.get()
    }

    /// `write` calls on all connections so far.
    pub fn writes(&self) -> u64 {
        self.writes.get()
    }

    /// Waits for room for one more. Who holds it counts as a connection for [`Self::closed`].
    ///
    /// `None` once [`Self::drain`] was called: [`Self::closed`] takes all that comes free from then on.
    pub async fn enter(&self) -> Option<OwnedSemaphorePermit> {
        let mut drain = self.drain.subscribe();
        tokio::select! {
            biased;
            () = draining(&mut drain) => None,
            // Fails only when the semaphore is closed, which nobody does.
            slot = self.slots.clone().acquire_owned() => slot.ok(),
        }
    }

    /// Places that are free now.
    #[cfg(test)]
    pub fn places(&self) -> usize {
        self.slots.available_permits()
    }

    /// What new connections show, where they speak TLS.
    pub fn certificates(&self) -> Option<Rc<Certificates>> {
        self.certificates.clone()
    }

    /// Accepts until [`Self::drain`] is called; `service` makes what answers a client. Runs on the shard's `LocalSet`.
    pub async fn accept<S, B>(
        &self,
        listener: Listener,
        service: impl Fn(Rc<Peer>) -> S + Clone + 'static,
    ) where
        S: Service<Request<Incoming>, Response = Response<B>> + 'static,
        S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        B: Body + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut drain = self.drain.subscribe();
        loop {
            let next = async {
                let slot = self.enter().await;
                (slot, listener.accept().await)
            };
            let (slot, accepted) = tokio::select! {
                next = next => next,
                () = draining(&mut drain) => return,
            };
            let plain = match accepted {
                Ok(plain) => plain,
                Err(error) => {
                    pause_after(&error).await;
                    continue;
                }
            };
            let counted = Counted::new(&self.open);
            let served = self.serve(plain, service.clone());
            tokio::task::spawn_local(Carrier::new(async move {
                served.await;
                drop((counted, slot));
            }));
            // A burst is for all workers that share the listener: this one first serves what it has taken.
            tokio::task::yield_now().await;
        }
    }

    /// Serves one connection from its handshake to its end.
    fn serve<S, B>(
        &self,
        plain: Plain,
        service: impl Fn(Rc<Peer>) -> S + 'static,
    ) -> impl Future<Output = ()> + 'static
    where
        S: Service<Request<Incoming>, Response = Response<B>> + 'static,
        S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        B: Body + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let acceptor = self.certificates.as_ref().map(|current| current.acceptor());
        let (protocols, patience, writes) =
            (self.protocols.clone(), self.patience, self.writes.clone());
        let mut drain = self.drain.subscribe();
        async move {
            let deadline = Instant::now() + patience.greeting;
            let secured = async {
                plain.hurry()?;
                secure(plain, acceptor, deadline).await
            };
            let secured = tokio::select! {
                biased;
                secured = secured => secured,
                // Nobody has asked for anything yet.
                () = draining(&mut drain) => return,
            };
            let (stream, chosen) = match secured {
                Ok(secured) => secured,
                Err(error) => {
                    return tracing::debug!(%error, "connection ended before its first request");
                }
            };
            let socket = Socket::new(stream, deadline, patience, writes);
            let peer = Peer::new();
            let service = service(peer.clone());
            protocols.serve(socket, chosen, peer, service, drain).await;
        }
    }

    /// Stops accepting and tells every connection to end with its last response.
    pub fn drain(&self) {
        self.drain.send_replace(true);
    }

    /// Waits until no connection is open.
    pub async fn closed(&self) {
        // Fails only when the semaphore is closed, which nobody does.
        let _ = self.slots.acquire_many(self.cap).await;
    }
}

/// One more, for as long as it lives.
struct Counted(Rc<Cell<usize>>);

impl Counted {
    fn new(count: &Rc<Cell<usize>>) -> Self {
        count.set(count.get() + 1);
        Self(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A peer that left before it was accepted is no trouble; a shortage (of descriptors, say) needs time to pass.
async fn pause_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    if matches!(
        error.kind(),
        ConnectionAborted | ConnectionReset | Interrupted
    ) {
        return;
    }
    tracing::warn!(%error, "cannot accept connections");
    tokio::time::sleep(Duration::from_millis(100)).await;
}
