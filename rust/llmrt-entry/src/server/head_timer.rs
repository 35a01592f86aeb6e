//! How long an HTTP/1.1 connection may wait for its next request, and for the rest of one that has begun.
//!
//! hyper has one timer for both, which starts as soon as it awaits a head. A new connection gets the time of a head; a
//! kept one gets the longer time of a pause, until its next byte.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};
use hyper_util::rt::TokioTimer;

/// Bytes that a connection has sent so far. One thread counts and looks; hyper's timers have to be `Sync` all the same.
#[derive(Clone, Default)]
pub struct Received(Arc<AtomicU64>);

impl Received {
    pub fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The timer of one connection's heads.
pub struct HeadTimer {
    received: Received,
    pause: Duration,
    new: AtomicBool,
}

impl HeadTimer {
    /// `pause` is the time that a connection is kept between two requests.
    pub fn new(received: Received, pause: Duration) -> Self {
        Self {
            received,
            pause,
            new: AtomicBool::new(true),
        }
    }
}

impl Timer for HeadTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        TokioTimer::new().sleep(duration)
    }

    /// A head is awaited from now on; it would be late at `deadline` if it began now.
    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        if self.new.swap(false, Ordering::Relaxed) {
            return TokioTimer::new().sleep_until(deadline);
        }
        let now = Instant::now();
        Box::pin(HeadSleep {
            received: self.received.clone(),
            head: deadline - now,
            paused: Some(self.received.get()),
            sleep: Box::pin(tokio::time::sleep(self.pause)),
        })
    }
}

struct HeadSleep {
    received: Received,
    /// Time for a head that has begun.
    head: Duration,
    /// Bytes received when the pause began, while it lasts.
    paused: Option<u64>,
    sleep: Pin<Box<tokio::time::Sleep>>,
}

impl Future for HeadSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let received = self.received.get();
        if self.paused.take_if(|before| *before != received).is_some() {
            let deadline = tokio::time::Instant::now() + self.head;
            self.sleep.as_mut().reset(deadline);
        }
        self.sleep.as_mut().poll(cx)
    }
}

impl Sleep for HeadSleep {}
