//! A phase of a run: requests sent when they are due, and the answers to all of them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Uri;
use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::{MissedTickBehavior, interval, sleep_until, timeout_at};

use crate::client::Client;
use crate::config::BenchConfig;
use crate::exchange::exchange;
use crate::record::Recorder;
use crate::run::{Progress, Watcher};

/// How often the watcher is asked.
const TICK: Duration = Duration::from_millis(200);

/// Why a phase ended before its work did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    Timeout,
    Interrupted,
}

/// What the requests of a phase share.
pub struct State {
    pub recorder: RefCell<Recorder>,
    pub active: Cell<usize>,
    pub peak: Cell<usize>,
    pub sent: Cell<u64>,
    /// A request ended.
    ended: Notify,
}

pub struct Phase<'a> {
    config: &'a BenchConfig,
    client: &'a Rc<Client>,
    uri: &'a Uri,
    measuring: bool,
    pub state: Rc<State>,
}

impl<'a> Phase<'a> {
    /// # Errors
    /// The histograms refuse their bounds.
    pub fn new(
        config: &'a BenchConfig,
        client: &'a Rc<Client>,
        uri: &'a Uri,
        measuring: bool,
    ) -> Result<Self, hdrhistogram::CreationError> {
        let state = Rc::new(State {
            recorder: RefCell::new(Recorder::new(config.goodput)?),
            active: Cell::new(0),
            peak: Cell::new(0),
            sent: Cell::new(0),
            ended: Notify::new(),
        });
        Ok(Self {
            config,
            client,
            uri,
            measuring,
            state,
        })
    }

    /// Sends every body when it is due and waits for the answers. Requests that are open at a cut die with the
    /// runtime.
    pub async fn drive(
        &self,
        bodies: &[Bytes],
        due: &[Duration],
        watcher: &mut dyn Watcher,
    ) -> Option<Cut> {
        self.state.recorder.borrow_mut().started = Instant::now();
        let progress = || {
            let recorder = self.state.recorder.borrow();
            Progress {
                measuring: self.measuring,
                total: bodies.len(),
                completed: recorder.completed,
                failed: recorder.failed,
                chunks: recorder.chunks,
            }
        };
        watched(
            self.dispatch(bodies, due),
            deadline(self.config),
            watcher,
            progress,
        )
        .await
        .err()
    }

    async fn dispatch(&self, bodies: &[Bytes], due: &[Duration]) {
        let limit = self.config.max_concurrency.unwrap_or(usize::MAX);
        let started = self.state.recorder.borrow().started;
        for (body, &due) in bodies.iter().zip(due) {
            let at = started + due;
            if due > Duration::ZERO && at > Instant::now() {
                sleep_until(at.into()).await;
            }
            self.fewer_than(limit).await;
            self.state.recorder.borrow_mut().sent(at.elapsed());
            self.send(body.clone());
        }
        self.fewer_than(1).await;
    }

    /// Waits until fewer than `limit` requests are open.
    async fn fewer_than(&self, limit: usize) {
        while self.state.active.get() >= limit {
            self.state.ended.notified().await;
        }
    }

    fn send(&self, body: Bytes) {
        let (state, client, uri) = (self.state.clone(), self.client.clone(), self.uri.clone());
        state.active.set(state.active.get() + 1);
        state.peak.set(state.peak.get().max(state.active.get()));
        state.sent.set(state.sent.get() + 1);
        spawn_local(async move {
            let outcome = exchange(&client, uri, body, &state.recorder).await;
            {
                let mut recorder = state.recorder.borrow_mut();
                match outcome {
                    Ok(answer) => recorder.completed(&answer),
                    Err(fault) => recorder.failed(fault),
                }
            }
            state.active.set(state.active.get() - 1);
            state.ended.notify_one();
        });
    }
}

/// When a phase that starts now is cut.
pub fn deadline(config: &BenchConfig) -> Instant {
    Instant::now() + Duration::from_secs_f64(config.timeout)
}

/// Runs `work` until the deadline while the watcher looks on.
pub async fn watched<T>(
    work: impl Future<Output = T>,
    deadline: Instant,
    watcher: &mut dyn Watcher,
    progress: impl Fn() -> Progress,
) -> Result<T, Cut> {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let both = async {
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                _ = ticks.tick() => if !watcher.tick(progress()) {
                    return Err(Cut::Interrupted);
                },
            }
        }
    };
    let ended = timeout_at(deadline.into(), both)
        .await
        .unwrap_or(Err(Cut::Timeout));
    watcher.tick(progress());
    ended
}
