//! The node's end: links over the tunnel, and joining again when it is lost.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use llmrt_link::transport::{Arrival, Connector, Listener, Pipe, Source};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::join::{JoinError, Joined, Target, Welcome};
use crate::line::Line;
use crate::outgoing::Outgoing;
use crate::record::Record;
use crate::session::Session;

/// Pauses between attempts to join again.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Frames that may wait for their reader in this process; then the tunnel is not read on.
const QUEUE: usize = 1024;

/// A node that stays joined. Dropping it leaves the core.
pub struct Node {
    driver: AbortHandle,
    place: Arc<AtomicU16>,
    fault: Option<oneshot::Receiver<String>>,
}

impl Node {
    /// Has the tunnel carry links. Must be called within a runtime, which then carries it.
    ///
    /// # Errors
    /// The runtime does not take the connection.
    pub fn start(joined: Joined, silence: Duration) -> io::Result<(Self, NodeOutbox, NodeInbox)> {
        let (target, session, welcome) = joined.session()?;
        let place = Arc::new(AtomicU16::new(welcome.slot));
        let shared = Arc::new(Shared {
            tunnel: Mutex::default(),
            joined: Notify::new(),
            place: place.clone(),
        });
        let (arrived, arrivals) = mpsc::channel(QUEUE);
        let (failed, fault) = oneshot::channel();
        let driver = Driver {
            shared: shared.clone(),
            target,
            arrived,
            silence,
        };
        let driver = tokio::spawn(async move {
            let fault = driver.run(session, welcome).await;
            // Nobody waits for it only when the node ends anyway.
            let _ = failed.send(fault);
        });
        let node = Self {
            driver: driver.abort_handle(),
            place,
            fault: Some(fault),
        };
        let inbox = NodeInbox {
            shared: shared.clone(),
            arrivals,
        };
        Ok((node, NodeOutbox(shared), inbox))
    }

    /// The number of this node among the entry workers, which another join may change while nothing is open.
    pub fn place(&self) -> Arc<AtomicU16> {
        self.place.clone()
    }

    /// Resolves with the reason when this node cannot serve the core any more. The first call takes the receiver.
    pub fn fault(&mut self) -> Option<oneshot::Receiver<String>> {
        self.fault.take()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// What the ends of links share with the driver.
struct Shared {
    tunnel: Mutex<Tunnel>,
    joined: Notify,
    place: Arc<AtomicU16>,
}

/// The tunnel as it is now.
#[derive(Default)]
struct Tunnel {
    /// How often it was made.
    number: u32,
    outgoing: Option<Outgoing>,
    /// Channels that this side has opened: where their frames go, or why they were closed.
    channels: HashMap<u32, mpsc::Sender<Result<Bytes, String>>>,
    last_channel: u32,
}

impl Shared {
    fn tunnel(&self) -> MutexGuard<'_, Tunnel> {
        self.tunnel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn up(&self, outgoing: Outgoing, welcome: &Welcome) -> u32 {
        // Before anything can be sent by this number.
        self.place.store(welcome.slot, Ordering::Relaxed);
        let mut tunnel = self.tunnel();
        tunnel.number = tunnel.number.wrapping_add(1);
        tunnel.outgoing = Some(outgoing);
        self.joined.notify_waiters();
        tunnel.number
    }

    fn down(&self) {
        let mut tunnel = self.tunnel();
        tunnel.outgoing = None;
        tunnel.channels.clear();
    }

    /// Opens a channel, if there is a tunnel.
    fn open(self: &Arc<Self>) -> Option<(ChannelPipe, ChannelSource)> {
        let mut tunnel = self.tunnel();
        let outgoing = tunnel.outgoing.clone()?;
        // Odd: the gateway's are even.
        tunnel.last_channel = tunnel.last_channel.wrapping_add(2) | 1;
        let channel = tunnel.last_channel;
        outgoing.push(Record::Open { channel });
        let (frames, source) = mpsc::channel(QUEUE);
        tunnel.channels.insert(channel, frames);
        let pipe = ChannelPipe {
            shared: self.clone(),
            outgoing,
            channel,
        };
        Some((pipe, ChannelSource(source)))
    }
}

/// Makes connections to the scheduler through the tunnel.
pub struct NodeOutbox(Arc<Shared>);

impl Connector for NodeOutbox {
    type Source = ChannelSource;

    async fn connect(&mut self) -> Result<(Box<dyn Pipe>, ChannelSource), String> {
        loop {
            let joined = self.0.joined.notified();
            if let Some((pipe, source)) = self.0.open() {
                return Ok((Box::new(pipe), source));
            }
            joined.await;
        }
    }

    fn place(&self) -> Option<u32> {
        Some(self.0.place.load(Ordering::Relaxed).into())
    }
}

/// Outgoing half of a channel. Dropping it closes the channel.
struct ChannelPipe {
    shared: Arc<Shared>,
    outgoing: Outgoing,
    channel: u32,
}

impl Pipe for ChannelPipe {
    fn push(&mut self, frame: Vec<u8>) -> bool {
        self.outgoing.push(Record::Data {
            channel: self.channel,
            frame: frame.into(),
        })
    }
}

impl Drop for ChannelPipe {
    fn drop(&mut self) {
        self.shared.tunnel().channels.remove(&self.channel);
        self.outgoing.push(Record::Close {
            channel: self.channel,
            reason: String::new(),
        });
    }
}

/// Incoming half of a channel.
pub struct ChannelSource(mpsc::Receiver<Result<Bytes, String>>);

impl Source for ChannelSource {
    async fn next(&mut self) -> Result<Bytes, String> {
        let lost = || Err("the tunnel to the core is lost".to_owned());
        self.0.recv().await.unwrap_or_else(lost)
    }
}

/// Where those arrive who send to this node through the tunnel.
pub struct NodeInbox {
    shared: Arc<Shared>,
    arrivals: mpsc::Receiver<Arrival>,
}

impl Listener for NodeInbox {
    async fn next(&mut self) -> Arrival {
        match self.arrivals.recv().await {
            Some(arrival) => arrival,
            // The driver has ended, and the node with it.
            None => std::future::pending().await,
        }
    }

    fn push(&mut self, key: &Bytes, frame: Vec<u8>) -> bool {
        let tunnel = self.shared.tunnel();
        let (Some(outgoing), Some((number, channel))) = (&tunnel.outgoing, of_key(key)) else {
            return false;
        };
        let frame = frame.into();
        number == tunnel.number && outgoing.push(Record::Data { channel, frame })
    }

    async fn unbind(&mut self) {
        self.arrivals.close();
    }
}

/// Names a channel of one tunnel among those of all that were.
fn key(number: u32, channel: u32) -> Bytes {
    let mut key = BytesMut::with_capacity(8);
    key.put_u32(number);
    key.put_u32(channel);
    key.freeze()
}

fn of_key(key: &[u8]) -> Option<(u32, u32)> {
    let (number, channel) = key.split_first_chunk::<4>()?;
    let channel = channel.first_chunk::<4>()?;
    Some((u32::from_be_bytes(*number), u32::from_be_bytes(*channel)))
}

/// Carries one tunnel after the other.
struct Driver {
    shared: Arc<Shared>,
    target: Target,
    arrived: mpsc::Sender<Arrival>,
    silence: Duration,
}

impl Driver {
    /// Runs until the core is another one; returns the reason.
    async fn run(self, mut session: Session, mut welcome: Welcome) -> String {
        loop {
            let mut line = Line::open(session, self.silence);
            let number = self.shared.up(line.outgoing().clone(), &welcome);
            tracing::info!(
                core = self.target.address,
                slot = welcome.slot,
                "joined the core"
            );
            let reason = self.carry(&mut line, number).await;
            drop(line);
            tracing::warn!(
                core = self.target.address,
                reason,
                "the core is lost; joining again"
            );
            let joined = match self.join_again(welcome.slot).await {
                Ok(joined) => joined,
                Err(error) => return error.to_string(),
            };
            if joined.1.core != welcome.core {
                return format!(
                    "the core at {} has come back with another configuration: start this node again",
                    self.target.address
                );
            }
            (session, welcome) = joined;
        }
    }

    /// Hands out what comes until the tunnel is lost; returns why that is.
    async fn carry(&self, line: &mut Line, number: u32) -> String {
        let mut guests = HashSet::new();
        let reason = loop {
            let record = match line.next().await {
                Ok(record) => record,
                Err(reason) => break reason,
            };
            self.hand_out(record, number, &mut guests).await;
        };
        self.shared.down();
        for channel in guests {
            self.arrive(Arrival::Gone {
                key: key(number, channel),
            })
            .await;
        }
        reason
    }

    async fn hand_out(&self, record: Record, number: u32, guests: &mut HashSet<u32>) {
        match record {
            Record::Open { channel } => drop(guests.insert(channel)),
            Record::Data { channel, frame } if guests.contains(&channel) => {
                let key = key(number, channel);
                self.arrive(Arrival::Frame { key, raw: frame }).await;
            }
            Record::Data { channel, frame } => {
                let reader = self.shared.tunnel().channels.get(&channel).cloned();
                if let Some(reader) = reader {
                    // Who has closed it meanwhile misses nothing.
                    let _ = reader.send(Ok(frame)).await;
                }
            }
            Record::Close { channel, reason } => {
                if guests.remove(&channel) {
                    let key = key(number, channel);
                    self.arrive(Arrival::Gone { key }).await;
                }
                let reader = self.shared.tunnel().channels.remove(&channel);
                if let Some(reader) = reader {
                    // As above.
                    let _ = reader.send(Err(reason)).await;
                }
            }
            Record::Ping => {}
        }
    }

    async fn arrive(&self, arrival: Arrival) {
        // Fails only when the node ends.
        let _ = self.arrived.send(arrival).await;
    }

    /// Tries until the core is there again, or says itself that it will not have this node any more.
    async fn join_again(&self, slot: u16) -> Result<(Session, Welcome), JoinError> {
        let mut pause = FIRST_PAUSE;
        let mut told = String::new();
        loop {
            sleep(pause).await;
            let error = match self.target.join(Some(slot)).await {
                Ok(joined) => return Ok(joined),
                Err(error) => error,
            };
            if error.is_verdict() {
                return Err(error);
            }
            let reason = error.to_string();
            if reason != told {
                tracing::warn!(reason, "not joined yet");
                told = reason;
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}
