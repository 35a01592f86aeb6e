//! The receiving end's protocol, without I/O, and the loop that feeds it.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use llmrt_wire::{Dead, Heartbeat, Hello, Message, Ready, VERSION, greeting_version};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout};

use crate::driver::beats;
use crate::outbox::other_version;
use crate::{Event, LinkOptions, PeerId, SendError, Welcome};

/// How long a closing inbox waits until its peers have read the notice and hung up.
const FAREWELL: Duration = Duration::from_millis(200);

/// What reaches a listener. The key names a connection.
pub enum Arrival {
    Frame { key: Bytes, raw: Bytes },
    Gone { key: Bytes },
}

/// A bound socket with its connections.
pub trait Listener: Send {
    /// The next arrival. Cancel-safe.
    fn next(&mut self) -> impl Future<Output = Arrival> + Send;
    /// Queues one frame without waiting; false when the connection is lost or its queue is full.
    fn push(&mut self, key: &Bytes, frame: Vec<u8>) -> bool;
    /// Stops listening.
    fn unbind(&mut self) -> impl Future<Output = ()> + Send;
}

struct Guest {
    peer: PeerId,
    hello: Hello,
    /// Beats since the guest was last heard.
    silent: u32,
}

/// Who has joined, and what is to be told about it.
#[derive(Default)]
struct Guests {
    by_key: HashMap<Bytes, Guest>,
    keys: HashMap<PeerId, Bytes>,
    last: PeerId,
    events: VecDeque<Event>,
}

impl Guests {
    fn join(&mut self, key: Bytes, hello: Hello) {
        self.last += 1;
        let peer = self.last;
        self.keys.insert(peer, key.clone());
        self.events.push_back(Event::Joined {
            peer,
            hello: hello.clone(),
        });
        self.by_key.insert(
            key,
            Guest {
                peer,
                hello,
                silent: 0,
            },
        );
    }

    fn leave(&mut self, key: &Bytes, reason: String) {
        if let Some(guest) = self.by_key.remove(key) {
            self.keys.remove(&guest.peer);
            self.events.push_back(Event::Left {
                peer: guest.peer,
                reason,
            });
        }
    }

    /// Connection of whoever holds the same place, if it is another connection or another incarnation.
    fn predecessor(&self, key: &Bytes, hello: &Hello) -> Option<Bytes> {
        self.by_key
            .iter()
            .find(|(_, guest)| guest.hello.role == hello.role && guest.hello.index == hello.index)
            .filter(|(other, guest)| *other != key || guest.hello.incarnation != hello.incarnation)
            .map(|(other, _)| other.clone())
    }
}

/// An inbox over any listener.
pub(crate) struct Desk<L: Listener> {
    listener: L,
    welcome: Welcome,
    guests: Guests,
    tick: Interval,
    patience: u32,
}

impl<L: Listener> Desk<L> {
    pub(crate) fn new(listener: L, welcome: Welcome, options: &LinkOptions) -> Self {
        // Guests are asked nothing, so a slow look at them is enough: at most four a silence.
        let period = (options.silence / 4).max(Duration::from_millis(1));
        let mut tick = interval_at(Instant::now() + period, period);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            listener,
            welcome,
            guests: Guests::default(),
            tick,
            patience: beats(options.silence, period),
        }
    }

    pub(crate) async fn recv(&mut self) -> Event {
        loop {
            if let Some(event) = self.guests.events.pop_front() {
                return event;
            }
            tokio::select! {
                biased;
                arrival = self.listener.next() => match arrival {
                    Arrival::Frame { key, raw } => self.frame(key, &raw),
                    Arrival::Gone { key } => {
                        self.guests.leave(&key, "the connection is closed".to_owned());
                    }
                },
                _ = self.tick.tick() => self.look_around(),
            }
        }
    }

    pub(crate) fn send(&mut self, peer: PeerId, message: &Message) -> Result<(), SendError> {
        let key = self.guests.keys.get(&peer).ok_or(SendError::NotReady)?;
        if self.listener.push(key, message.encode()) {
            Ok(())
        } else {
            Err(SendError::Full)
        }
    }

    pub(crate) async fn close(&mut self, reason: &str) {
        self.say_dead(reason);
        // Peers hang up when they have read the notice; that is how we know that it arrived.
        let _ = timeout(FAREWELL, async {
            while !self.guests.by_key.is_empty() {
                if let Arrival::Gone { key } = self.listener.next().await {
                    self.guests.leave(&key, String::new());
                }
            }
        })
        .await;
        self.guests = Guests::default();
        self.listener.unbind().await;
    }

    /// Queues the death notice for every guest.
    fn say_dead(&mut self, reason: &str) {
        for key in self.guests.by_key.keys() {
            let dead = dead(&self.welcome, reason.to_owned());
            self.listener.push(key, dead);
        }
    }

    fn frame(&mut self, key: Bytes, raw: &[u8]) {
        let message = match Message::decode(raw) {
            Ok(message) => message,
            Err(error) => {
                tracing::warn!(%error, "malformed frame dropped");
                return match greeting_version(raw) {
                    Some(version) if version != VERSION => {
                        self.refuse(&key, other_version(version))
                    }
                    _ => {}
                };
            }
        };
        if let Message::Hello(hello) = message {
            return self.greeted(key, hello);
        }
        let Some(guest) = self.guests.by_key.get_mut(&key) else {
            return self.refuse(&key, "not greeted: say Hello first".to_owned());
        };
        guest.silent = 0;
        let peer = guest.peer;
        match message {
            Message::Heartbeat(beat) => self.echo(&key, beat.sequence),
            Message::Dead(dead) => self.guests.leave(&key, dead.reason),
            message => self
                .guests
                .events
                .push_back(Event::Message { peer, message }),
        }
    }

    fn greeted(&mut self, key: Bytes, hello: Hello) {
        if hello.version != VERSION {
            return self.refuse(&key, other_version(hello.version));
        }
        if let Some(old) = self.guests.predecessor(&key, &hello) {
            self.guests
                .leave(&old, "replaced by a successor".to_owned());
        }
        let ready = Message::from(Ready {
            version: VERSION,
            incarnation: self.welcome.incarnation,
            credit: self.welcome.credit,
            info: self.welcome.info.clone(),
            tag: Default::default(),
        });
        self.listener.push(&key, ready.encode());
        if !self.guests.by_key.contains_key(&key) {
            self.guests.join(key, hello);
        }
    }

    fn echo(&mut self, key: &Bytes, sequence: u64) {
        let beat = Message::from(Heartbeat {
            incarnation: self.welcome.incarnation,
            sequence,
            tag: Default::default(),
        });
        self.listener.push(key, beat.encode());
    }

    fn refuse(&mut self, key: &Bytes, reason: String) {
        tracing::warn!(reason, "peer refused");
        let dead = dead(&self.welcome, reason);
        self.listener.push(key, dead);
    }

    /// Drops guests that were silent for too long.
    fn look_around(&mut self) {
        let mut lost = Vec::new();
        for (key, guest) in &mut self.guests.by_key {
            guest.silent += 1;
            if guest.silent > self.patience {
                lost.push(key.clone());
            }
        }
        for key in lost {
            self.guests.leave(&key, "no sign of life".to_owned());
        }
    }
}

impl<L: Listener> Drop for Desk<L> {
    fn drop(&mut self) {
        self.say_dead("the receiver is gone");
    }
}

fn dead(welcome: &Welcome, reason: String) -> Vec<u8> {
    Message::from(Dead {
        incarnation: welcome.incarnation,
        reason,
        tag: Default::default(),
    })
    .encode()
}

#[cfg(test)]
#[path = "inbox_tests.rs"]
mod tests;
