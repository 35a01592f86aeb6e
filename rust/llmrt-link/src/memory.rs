//! Links within one process: the twins of [`crate::zmq`] for tests and for a receiver in the same process.
//!
//! Frames are encoded and travel over bounded channels; a [`Network`] stands for the file system of `ipc`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, SelectAll, StreamExt};
use llmrt_wire::Message;
use tokio::sync::mpsc;

use crate::transport::{Arrival, Connector, LinkInbox, LinkOutbox, Listener, Pipe, Source};
use crate::{Event, Identity, Inbox, LinkError, LinkOptions, PeerId, SendError, Welcome};

/// Frames that one connection holds in each direction; as many as the ZMQ twin.
const QUEUE: usize = 100_000;

/// Names that inboxes are bound to.
#[derive(Clone, Default)]
pub struct Network {
    doors: Arc<Mutex<HashMap<String, Door>>>,
}

impl Network {
    fn doors(&self) -> MutexGuard<'_, HashMap<String, Door>> {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where callers reach a bound inbox.
type Door = mpsc::Sender<Line>;

/// One connection as the inbox gets it.
struct Line {
    key: Bytes,
    frames: mpsc::Receiver<Bytes>,
    back: mpsc::Sender<Bytes>,
}

/// Connects to `name` in the background; see [`crate::zmq::connect`].
pub fn connect(
    network: &Network,
    name: &str,
    identity: Identity,
    options: LinkOptions,
) -> LinkOutbox {
    let connector = Caller {
        network: network.clone(),
        name: name.to_owned(),
    };
    LinkOutbox::over(connector, identity, options)
}

struct Caller {
    network: Network,
    name: String,
}

impl Connector for Caller {
    type Source = LineSource;

    async fn connect(&mut self) -> Result<(Box<dyn Pipe>, LineSource), String> {
        static CONNECTIONS: AtomicU64 = AtomicU64::new(0);
        let nobody = || format!("nobody is bound to {:?}", self.name);
        let door = self
            .network
            .doors()
            .get(&self.name)
            .cloned()
            .ok_or_else(nobody)?;
        let number = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        let (pipe, frames) = mpsc::channel(QUEUE);
        let (back, source) = mpsc::channel(QUEUE);
        let line = Line {
            key: Bytes::copy_from_slice(&number.to_be_bytes()),
            frames,
            back,
        };
        door.send(line).await.map_err(|_| nobody())?;
        Ok((Box::new(LinePipe(pipe)), LineSource(source)))
    }
}

struct LinePipe(mpsc::Sender<Bytes>);

impl Pipe for LinePipe {
    fn push(&mut self, frame: Vec<u8>) -> bool {
        self.0.try_send(frame.into()).is_ok()
    }
}

struct LineSource(mpsc::Receiver<Bytes>);

impl Source for LineSource {
    async fn next(&mut self) -> Result<Bytes, String> {
        self.0
            .recv()
            .await
            .ok_or_else(|| "the connection is closed".to_owned())
    }
}

/// Receiving end of in-memory links.
pub struct MemoryInbox {
    desk: LinkInbox<Post>,
}

impl MemoryInbox {
    /// Binds `name`, whose peers are answered with `welcome`. Must be called within a tokio runtime.
    pub fn bind(
        network: &Network,
        name: &str,
        welcome: Welcome,
        options: LinkOptions,
    ) -> Result<Self, LinkError> {
        let (door, callers) = mpsc::channel(QUEUE);
        let mut doors = network.doors();
        if doors.get(name).is_some_and(|door| !door.is_closed()) {
            return Err(LinkError::Bind {
                endpoint: name.to_owned(),
                reason: "somebody else is bound to it".to_owned(),
            });
        }
        doors.insert(name.to_owned(), door);
        let post = Post {
            callers,
            lines: SelectAll::new(),
            backs: HashMap::new(),
        };
        Ok(Self {
            desk: LinkInbox::over(post, welcome, &options),
        })
    }
}

impl Inbox for MemoryInbox {
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

struct Post {
    callers: mpsc::Receiver<Line>,
    lines: SelectAll<BoxStream<'static, Arrival>>,
    backs: HashMap<Bytes, mpsc::Sender<Bytes>>,
}

impl Listener for Post {
    async fn next(&mut self) -> Arrival {
        loop {
            tokio::select! {
                Some(line) = self.callers.recv() => {
                    self.backs.insert(line.key.clone(), line.back);
                    self.lines.push(arrivals(line.key, line.frames));
                }
                Some(arrival) = self.lines.next() => {
                    if let Arrival::Gone { key } = &arrival {
                        self.backs.remove(key);
                    }
                    return arrival;
                }
                else => std::future::pending().await,
            }
        }
    }

    fn push(&mut self, key: &Bytes, frame: Vec<u8>) -> bool {
        self.backs
            .get(key)
            .is_some_and(|back| back.try_send(frame.into()).is_ok())
    }

    async fn unbind(&mut self) {
        self.callers.close();
    }
}

/// The frames of one connection and, behind the last, its end.
fn arrivals(key: Bytes, frames: mpsc::Receiver<Bytes>) -> BoxStream<'static, Arrival> {
    let state = Some((key, frames));
    stream::unfold(state, async |state| {
        let (key, mut frames) = state?;
        match frames.recv().await {
            Some(raw) => {
                let arrival = Arrival::Frame {
                    key: key.clone(),
                    raw,
                };
                Some((arrival, Some((key, frames))))
            }
            None => Some((Arrival::Gone { key }, None)),
        }
    })
    .boxed()
}
