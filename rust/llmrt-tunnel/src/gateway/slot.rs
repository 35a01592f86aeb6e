//! One place: the results endpoint of an entry worker, and the node that is there now.

use std::collections::HashMap;
use std::future::pending;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use llmrt_link::Identity;
use llmrt_link::transport::{Arrival, Listener};
use llmrt_link::zmq::Dealer;
use llmrt_wire::{Dead, Message, greeting_version};
use tokio::sync::mpsc;
use tokio::task::spawn_local;

use super::places::Places;
use super::requests;
use crate::line::Line;
use crate::record::Record;

/// Frames of a node that may wait for its connection to the scheduler; then the node is not read on. That is never long:
/// a connection that stands takes them without waiting or ends, and one attempt to connect is bounded in time.
const QUEUE: usize = 1024;
/// Connections to the scheduler that a node may have: one, and those that it has given up just now.
const MOST_CONNECTIONS: usize = 8;
/// Largest greeting that is kept for a node to come.
const MOST_GREETING: usize = 4096;

/// A node that was let in.
pub struct Guest {
    pub line: Line,
    pub address: SocketAddr,
    /// When it took its place; tells it from those before.
    pub since: Instant,
}

/// The way of nodes to their place.
pub type Guests = mpsc::Sender<Guest>;

/// The node that is there, and its connections to the scheduler by their channels.
struct Node {
    guest: Guest,
    requests: HashMap<u32, mpsc::Sender<Bytes>>,
}

/// Somebody who is connected to the endpoint. The first frame of a connection is its greeting, and it says no more until
/// it is answered; so a node that comes later gets it first.
struct Peer {
    greeting: Bytes,
    channel: Option<u32>,
}

/// The endpoint with its connections, which outlive nodes.
pub struct Slot<L> {
    worker: u16,
    listener: L,
    requests: String,
    places: Rc<Places>,
    incarnation: u64,
    peers: HashMap<Bytes, Peer>,
    /// Keys of the peers that have a channel to the node.
    channels: HashMap<u32, Bytes>,
    last_channel: u32,
    node: Option<Node>,
}

impl<L: Listener> Slot<L> {
    /// Place `worker` behind `listener`, whose nodes get connections to `requests`.
    pub fn new(worker: u16, listener: L, requests: String, places: Rc<Places>) -> Self {
        Self {
            worker,
            listener,
            requests,
            places,
            incarnation: Identity::draw(),
            peers: HashMap::new(),
            channels: HashMap::new(),
            last_channel: 0,
            node: None,
        }
    }

    /// Serves one node after the other.
    pub async fn serve(mut self, mut guests: mpsc::Receiver<Guest>) {
        loop {
            tokio::select! {
                arrival = self.listener.next() => self.arrived(arrival),
                record = next(&mut self.node) => match record {
                    Ok(record) => self.record(record).await,
                    Err(reason) => self.lose(&reason),
                },
                guest = guests.recv() => match guest {
                    Some(guest) => self.seat(guest),
                    None => return,
                },
            }
        }
    }

    fn seat(&mut self, guest: Guest) {
        self.lose("it has come back");
        tracing::info!(worker = self.worker, address = %guest.address, "an entry node has joined");
        self.node = Some(Node {
            guest,
            requests: HashMap::new(),
        });
        let waiting: Vec<Bytes> = self.peers.keys().cloned().collect();
        for key in waiting {
            self.open(key);
        }
    }

    /// The node is gone: whoever was connected to it is told, as it would have been by its end.
    fn lose(&mut self, reason: &str) {
        let Some(node) = self.node.take() else {
            return;
        };
        let address = node.guest.address;
        tracing::warn!(worker = self.worker, %address, reason, "an entry node has left");
        self.places.leave(self.worker, node.guest.since);
        let dead = Message::from(Dead {
            incarnation: self.incarnation,
            reason: "the entry node has left".to_owned(),
            tag: Default::default(),
        })
        .encode();
        for (_, key) in self.channels.drain() {
            self.listener.push(&key, dead.clone());
            // It comes back by another connection.
            self.peers.remove(&key);
        }
    }

    fn arrived(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Frame { key, raw } => match self.peers.get_mut(&key) {
                Some(Peer {
                    channel: Some(channel),
                    ..
                }) => {
                    let channel = *channel;
                    self.send(Record::Data {
                        channel,
                        frame: raw,
                    });
                }
                // Said again while it waits.
                Some(peer) if is_greeting(&raw) => peer.greeting = raw,
                None if is_greeting(&raw) => {
                    let peer = Peer {
                        greeting: raw,
                        channel: None,
                    };
                    self.peers.insert(key.clone(), peer);
                    self.open(key);
                }
                // To a node that has left.
                _ => {}
            },
            Arrival::Gone { key } => {
                if let Some(channel) = self.peers.remove(&key).and_then(|peer| peer.channel) {
                    self.channels.remove(&channel);
                    let reason = String::new();
                    self.send(Record::Close { channel, reason });
                }
            }
        }
    }

    /// Connects a peer with the node, if there is one.
    fn open(&mut self, key: Bytes) {
        let Some(peer) = self.peers.get_mut(&key).filter(|_| self.node.is_some()) else {
            return;
        };
        // Even: the node's are odd.
        self.last_channel = self.last_channel.wrapping_add(2);
        let channel = self.last_channel;
        peer.channel = Some(channel);
        let frame = peer.greeting.clone();
        self.channels.insert(channel, key);
        self.send(Record::Open { channel });
        self.send(Record::Data { channel, frame });
    }

    fn send(&self, record: Record) {
        if let Some(node) = &self.node {
            // One that has ended shows at its line.
            node.guest.line.outgoing().push(record);
        }
    }

    async fn record(&mut self, record: Record) {
        match record {
            Record::Open { channel } => self.connect(channel),
            Record::Data { channel, frame } => match self.channels.get(&channel) {
                Some(key) => {
                    // Who does not read is a peer whose connection has just ended.
                    self.listener.push(key, frame.into());
                }
                None => self.submit(channel, frame).await,
            },
            Record::Close { channel, .. } => {
                if let Some(node) = &mut self.node {
                    node.requests.remove(&channel);
                }
            }
            Record::Ping => {}
        }
    }

    /// Makes a connection to the scheduler for the node.
    fn connect(&mut self, channel: u32) {
        let Some(node) = &mut self.node else {
            return;
        };
        node.requests.retain(|_, frames| !frames.is_closed());
        if node.requests.len() >= MOST_CONNECTIONS || channel.is_multiple_of(2) {
            return self.lose("it opens more connections than an entry worker needs");
        }
        let dealer = match Dealer::new(&self.requests) {
            Ok(dealer) => dealer,
            Err(error) => return self.lose(&error.to_string()),
        };
        let (frames, taken) = mpsc::channel(QUEUE);
        node.requests.insert(channel, frames);
        let outgoing = node.guest.line.outgoing().clone();
        spawn_local(requests::carry(
            dealer,
            self.worker,
            channel,
            taken,
            outgoing,
        ));
    }

    async fn submit(&self, channel: u32, frame: Bytes) {
        let requests = self.node.as_ref().map(|node| &node.requests);
        if let Some(frames) = requests.and_then(|requests| requests.get(&channel)) {
            // Fails when its other side has ended, which the node has been told.
            let _ = frames.send(frame).await;
        }
    }
}

fn is_greeting(raw: &[u8]) -> bool {
    raw.len() <= MOST_GREETING && greeting_version(raw).is_some()
}

/// The next record of the node, for ever while there is none.
async fn next(node: &mut Option<Node>) -> Result<Record, String> {
    match node {
        Some(node) => node.guest.line.next().await,
        None => pending().await,
    }
}
