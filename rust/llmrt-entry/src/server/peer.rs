//! What the requests of one connection have come to: whether any is open, and how many were left half-way.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use super::connection::draining;
use super::hangup::Hangup;
use crate::config::Limits;

/// Streams that a client may reset, before the last event of their answers was written, beyond those that it lets end.
const RESETS: f64 = 500.0;
/// Resets per second that are forgotten.
const FORGOTTEN: f64 = 10.0;

/// How long a connection may last.
#[derive(Clone, Copy)]
pub struct Lifespan {
    idle: Duration,
    age: Option<Duration>,
}

impl Lifespan {
    pub fn new(limits: &Limits) -> Self {
        Self {
            idle: limits.keep_alive_timeout(),
            age: limits.max_connection_age(),
        }
    }

    /// Connections that began together must not end together.
    fn age(&self) -> Option<Duration> {
        self.age.map(|age| age.mul_f64(0.9 + 0.2 * fastrand::f64()))
    }
}

/// The client of a connection.
pub struct Peer {
    /// Ends the connection with all that is on it.
    hangup: Hangup,
    open: Cell<usize>,
    /// Since when no request is open.
    idle: Cell<Instant>,
    /// HTTP/1.1 has its own timer between two requests.
    multiplexed: Cell<bool>,
    resets_left: Cell<f64>,
    reset_last: Cell<Instant>,
    retired: Notify,
}

impl Peer {
    /// To be made where the connection is carried.
    pub fn new() -> Rc<Self> {
        let now = Instant::now();
        Rc::new(Self {
            hangup: Hangup::current(),
            open: Cell::new(0),
            idle: Cell::new(now),
            multiplexed: Cell::new(true),
            resets_left: Cell::new(RESETS),
            reset_last: Cell::new(now),
            retired: Notify::new(),
        })
    }

    /// Counts a request until its [`Stake`] is dropped.
    pub fn open(self: &Rc<Self>, multiplexed: bool) -> Stake {
        self.open.set(self.open.get() + 1);
        self.multiplexed.set(multiplexed);
        Stake {
            peer: self.clone(),
            fulfilled: false,
        }
    }

    /// Waits until the connection is to take no new requests. Cheap to wait for: a connection that writes tokens looks
    /// at it each time.
    pub(super) async fn retired(&self) {
        self.retired.notified().await;
    }

    /// Retires the connection when `drain` turns true and when it is too old or idle for too long.
    pub(super) async fn watch(
        self: Rc<Self>,
        mut drain: watch::Receiver<bool>,
        lifespan: Lifespan,
    ) {
        let old = lifespan.age().map(|age| Instant::now() + age);
        loop {
            let look = self.idle_end(lifespan.idle);
            let next = old.map_or(look, |old| old.min(look));
            let drained = tokio::time::timeout_at(next, draining(&mut drain))
                .await
                .is_ok();
            let now = Instant::now();
            if drained || old.is_some_and(|old| now >= old) || now >= self.idle_end(lifespan.idle) {
                return self.retired.notify_one();
            }
        }
    }

    /// Waits until no request was open for `patience`: what keeps the connection then is a client that does not fetch the
    /// last of its answers.
    pub(super) async fn abandoned(&self, patience: Duration) {
        while Instant::now() < self.idle_end(patience) {
            sleep_until(self.idle_end(patience)).await;
        }
    }

    /// When the connection will have been idle for `patience`, if nothing more happens.
    fn idle_end(&self, patience: Duration) -> Instant {
        let idle = self.open.get() == 0 && self.multiplexed.get();
        let since = if idle {
            self.idle.get()
        } else {
            Instant::now()
        };
        since + patience
    }

    fn closed(&self, fulfilled: bool) {
        let open = self.open.get() - 1;
        self.open.set(open);
        if open == 0 {
            self.idle.set(Instant::now());
        }
        if !self.multiplexed.get() {
            return;
        }
        let mut left = self.resets_left.get();
        if fulfilled {
            self.resets_left.set((left + 1.0).min(RESETS));
            return;
        }
        let now = Instant::now();
        let pause = now - self.reset_last.replace(now);
        left = (left + FORGOTTEN * pause.as_secs_f64()).min(RESETS) - 1.0;
        self.resets_left.set(left);
        if left < -RESETS {
            // It was told to go and goes on.
            tracing::info!("connection cut: its client resets too many streams");
            self.hangup.cut();
        } else if left < 0.0 {
            self.retired.notify_one();
        }
    }
}

/// An open request of a [`Peer`]. Dropping it before [`Self::fulfil`] says that its client left it.
pub struct Stake {
    peer: Rc<Peer>,
    fulfilled: bool,
}

impl Stake {
    /// All of the answer was handed over.
    pub fn fulfil(&mut self) {
        self.fulfilled = true;
    }
}

impl Drop for Stake {
    fn drop(&mut self) {
        self.peer.closed(self.fulfilled);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn retired(peer: &Peer) -> bool {
        peer.retired().now_or_never().is_some()
    }

    /// Opens requests and leaves them, or lets them end.
    fn requests(peer: &Rc<Peer>, count: usize, fulfilled: bool, multiplexed: bool) {
        for _ in 0..count {
            let mut stake = peer.open(multiplexed);
            if fulfilled {
                stake.fulfil();
            }
        }
    }

    #[test]
    fn a_client_may_leave_as_many_requests_as_it_lets_end_and_a_few_hundred_more() {
        let peer = Peer::new();
        requests(&peer, 490, false, true);
        assert!(!retired(&peer));
        for _ in 0..1000 {
            requests(&peer, 1, true, true);
            requests(&peer, 1, false, true);
        }
        assert!(!retired(&peer));
        requests(&peer, 30, false, true);
        assert!(retired(&peer));
    }

    #[test]
    fn good_requests_are_no_credit_for_more() {
        let peer = Peer::new();
        requests(&peer, 5000, true, true);
        requests(&peer, 520, false, true);
        assert!(retired(&peer));
    }

    #[test]
    fn on_http1_a_request_that_is_left_ends_its_connection_anyway() {
        let peer = Peer::new();
        requests(&peer, 2000, false, false);
        assert!(!retired(&peer));
    }
}
