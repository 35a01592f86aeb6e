//! Links between processes: ZMQ over `ipc` or `tcp`, outbox DEALER, inbox ROUTER.
//!
//! Connections stay anonymous for ZMQ (no routing identity): who a peer is stands in its `Hello`, so a successor
//! can never be mixed up with its predecessor's dying connection.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt};
use futures_util::{FutureExt, Stream};
use llmrt_wire::Message;
use zeromq::util::PeerIdentity;
use zeromq::{
    DealerRecvHalf, DealerSendHalf, DealerSocket, Endpoint, RouterSocket, Socket, SocketEvent,
    SocketOptions, SocketRecv, SocketSend, ZmqMessage,
};

use crate::transport::{Arrival, Connector, LinkInbox, LinkOutbox, Listener, Pipe, Source};
use crate::{Event, Identity, Inbox, LinkError, LinkOptions, PeerId, SendError, Welcome};

/// Bound of one attempt to connect; the crate's own pauses between retries stay short within it.
const ATTEMPT: Duration = Duration::from_secs(1);

/// Connects to `endpoint` in the background; nobody needs to listen there yet. Must be called within a tokio runtime,
/// which then carries the link.
///
/// # Errors
/// It is no endpoint.
pub fn connect(
    endpoint: &str,
    identity: Identity,
    options: LinkOptions,
) -> Result<LinkOutbox, LinkError> {
    Ok(LinkOutbox::over(Dealer::new(endpoint)?, identity, options))
}

/// Makes DEALER sockets: a fresh one per connection, because the crate's own do not reconnect.
pub struct Dealer {
    endpoint: String,
}

impl Dealer {
    /// Connects to `endpoint` when it is asked to.
    ///
    /// # Errors
    /// It is no endpoint.
    pub fn new(endpoint: &str) -> Result<Self, LinkError> {
        parse(endpoint)?;
        Ok(Self {
            endpoint: endpoint.to_owned(),
        })
    }
}

impl Connector for Dealer {
    type Source = DealerSource;

    async fn connect(&mut self) -> Result<(Box<dyn Pipe>, DealerSource), String> {
        let mut options = SocketOptions::default();
        options.connect_timeout(ATTEMPT);
        let mut socket = DealerSocket::with_options(options);
        let losses = losses(socket.monitor());
        socket
            .connect(&self.endpoint)
            .await
            .map_err(|error| format!("cannot connect to {}: {error}", self.endpoint))?;
        let (send, recv) = socket.split();
        Ok((Box::new(DealerPipe(send)), DealerSource { recv, losses }))
    }
}

struct DealerPipe(DealerSendHalf);

impl Pipe for DealerPipe {
    fn push(&mut self, frame: Vec<u8>) -> bool {
        // Sending only moves the frame to the connection's queue: a future that is not done at once found it full.
        matches!(self.0.send(frame.into()).now_or_never(), Some(Ok(())))
    }
}

/// Incoming half of a DEALER.
pub struct DealerSource {
    recv: DealerRecvHalf,
    losses: BoxStream<'static, Bytes>,
}

impl Source for DealerSource {
    async fn next(&mut self) -> Result<Bytes, String> {
        loop {
            tokio::select! {
                biased;
                message = self.recv.recv() => match message {
                    Ok(message) => match single_frame(message, 1) {
                        Some(raw) => return Ok(raw),
                        None => tracing::warn!("message of several frames dropped"),
                    },
                    Err(error) => return Err(format!("the connection broke: {error}")),
                },
                Some(_) = self.losses.next() => return Err("the connection is closed".to_owned()),
            }
        }
    }
}

/// Receiving end of ZMQ links.
pub struct ZmqInbox {
    desk: LinkInbox<Router>,
    endpoint: String,
}

impl ZmqInbox {
    /// Binds `endpoint`, whose peers are answered with `welcome`; see [`Router::bind`].
    ///
    /// # Errors
    /// It is no endpoint, or cannot be bound.
    pub async fn bind(
        endpoint: &str,
        welcome: Welcome,
        options: LinkOptions,
    ) -> Result<Self, LinkError> {
        let (router, endpoint) = Router::bind(endpoint).await?;
        Ok(Self {
            desk: LinkInbox::over(router, welcome, &options),
            endpoint,
        })
    }

    /// The endpoint as it was bound: a `tcp` port of 0 is replaced by the real one.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }
}

impl Inbox for ZmqInbox {
    async fn recv(&mut self) -> Event {
        self.desk.recv().await
    }

    fn send(&mut self, peer: PeerId, message: &Message) -> Result<(), SendError> {
        self.desk.send(peer, message)
    }

    async fn close(self, reason: &str) {
        self.desk.close(reason).await;
    }
}

/// A bound ROUTER with its connections.
pub struct Router {
    socket: RouterSocket,
    losses: BoxStream<'static, Bytes>,
}

impl Router {
    /// Binds `endpoint`, and returns it as it was bound. The socket file of a dead predecessor is replaced; one that is
    /// still listened to is not. Must be called within a tokio runtime, which then carries the connections.
    ///
    /// # Errors
    /// It is no endpoint, or cannot be bound.
    pub async fn bind(endpoint: &str) -> Result<(Self, String), LinkError> {
        if let Endpoint::Ipc(Some(path)) = parse(endpoint)? {
            remove_stale(&path).map_err(|error| cannot_bind(endpoint, error))?;
        }
        let mut socket = RouterSocket::new();
        let losses = losses(socket.monitor());
        let bound = socket
            .bind(endpoint)
            .await
            .map_err(|error| cannot_bind(endpoint, error))?;
        Ok((Self { socket, losses }, bound.to_string()))
    }
}

impl Listener for Router {
    async fn next(&mut self) -> Arrival {
        loop {
            tokio::select! {
                biased;
                Some(key) = self.losses.next() => return Arrival::Gone { key },
                message = self.socket.recv() => match message {
                    Ok(message) => {
                        let key = message.get(0).cloned();
                        if let (Some(key), Some(raw)) = (key, single_frame(message, 2)) {
                            return Arrival::Frame { key, raw };
                        }
                        tracing::warn!("message of several frames dropped");
                    }
                    Err(error) => tracing::warn!(%error, "receiving failed"),
                },
            }
        }
    }

    fn push(&mut self, key: &Bytes, frame: Vec<u8>) -> bool {
        let mut message = ZmqMessage::from(frame);
        message.push_front(key.clone());
        matches!(self.socket.send(message).now_or_never(), Some(Ok(())))
    }

    async fn unbind(&mut self) {
        for error in self.socket.unbind_all().await {
            tracing::debug!(%error, "unbinding failed");
        }
    }
}

/// Connections that ended, by their key.
fn losses(monitor: impl Stream<Item = SocketEvent> + Send + 'static) -> BoxStream<'static, Bytes> {
    monitor
        .filter_map(async |event| match event {
            SocketEvent::Disconnected(identity) => Some(PeerIdentity::into(identity)),
            _ => None,
        })
        .boxed()
}

/// The last frame of a message that must have `count` frames.
fn single_frame(message: ZmqMessage, count: usize) -> Option<Bytes> {
    let mut frames = message.into_vecdeque();
    if frames.len() == count {
        frames.pop_back()
    } else {
        None
    }
}

fn parse(endpoint: &str) -> Result<Endpoint, LinkError> {
    let not = |reason: String| LinkError::Endpoint {
        endpoint: endpoint.to_owned(),
        reason,
    };
    let parsed = endpoint
        .parse::<Endpoint>()
        .map_err(|error| not(error.to_string()))?;
    match &parsed {
        Endpoint::Ipc(Some(path)) if path.is_absolute() => Ok(parsed),
        Endpoint::Ipc(_) => Err(not("an ipc endpoint needs an absolute path".to_owned())),
        _ => Ok(parsed),
    }
}

fn cannot_bind(endpoint: &str, error: impl ToString) -> LinkError {
    LinkError::Bind {
        endpoint: endpoint.to_owned(),
        reason: error.to_string(),
    }
}

/// Removes a socket file that nobody listens to.
fn remove_stale(path: &Path) -> std::io::Result<()> {
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        // Listened to, absent or not a socket: binding says what is wrong.
        _ => Ok(()),
    }
}
