//! The request table of a shard: handing out results, cancellation. Who may enter it is the gate's to say.
//!
//! A shard is one thread, so nothing here locks. A request is open from [`Router::open`] until its end has arrived or
//! its [`RequestGuard`] is dropped, whichever is first; an id that is not open is ignored.

mod choices;
mod extras;
mod guard;
mod outlet;
mod stall;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use llmrt_link::{Outbox, SendError};
use llmrt_wire::{Abort, FinishReason, First, IdMap, Request, RequestId, Submit, TextFrame};
use tokio::sync::Notify;

pub use choices::{ChoicesBody, Closing};
pub use guard::{EventBody, PIECE, RequestGuard};
pub use outlet::{End, EventWriter, Form, Origin};

use crate::api::{ApiError, Row};
use crate::gate::{Gate, Permit, Refusal, Turn};
use crate::metrics::Metrics;
use extras::Extras;
use outlet::{Outlet, log_end};
use stall::Stalled;

/// Bounds of a router.
#[derive(Clone, Copy, Debug)]
pub struct RouterLimits {
    /// Bytes above which a response counts as stalled; four times as much ends it.
    pub buffer_bytes: usize,
    /// How long a response may stay stalled.
    pub stall_timeout: Duration,
    /// Longest silence on a stream.
    pub ping_interval: Option<Duration>,
}

/// A generation that is to be opened.
pub struct Opening {
    pub permit: Permit,
    /// What it holds until its end; a probe holds nothing.
    pub turn: Option<Turn>,
    pub request: Request,
    pub form: Form,
}

/// What stands in the table once its request was sent: id, tokens of the prompt, and what it holds.
type Placed = (RequestId, u32, Permit, Option<Turn>, Form);

/// The request table and what surrounds it.
pub struct Router {
    limits: RouterLimits,
    worker: Arc<AtomicU16>,
    shard: u8,
    sequence: Cell<u64>,
    outbox: Arc<dyn Outbox>,
    metrics: Rc<Metrics>,
    open: RefCell<IdMap<Rc<RefCell<Outlet>>>>,
    gate: Rc<Gate>,
    stalled: Stalled,
    /// Responses for whose wires something waits.
    due: RefCell<Vec<Rc<RefCell<Outlet>>>>,
    opened: Notify,
}

impl Router {
    pub fn new(
        worker: Arc<AtomicU16>,
        shard: u8,
        limits: RouterLimits,
        gate: Rc<Gate>,
        outbox: Arc<dyn Outbox>,
        metrics: Rc<Metrics>,
    ) -> Rc<Self> {
        // Ids start at the clock: those of a worker's predecessor, which the core may still know, are not used again.
        let start = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |now| now.as_micros() as u64);
        let router = Rc::new(Self {
            limits,
            worker,
            shard,
            sequence: Cell::new(start),
            outbox,
            metrics,
            open: RefCell::default(),
            gate,
            stalled: Stalled::default(),
            due: RefCell::default(),
            opened: Notify::new(),
        });
        let late = Rc::downgrade(&router);
        router.gate.on_late(move |ids| {
            if let Some(router) = late.upgrade() {
                router.drop_late(ids);
            }
        });
        router
    }

    /// Requests whose end has not arrived.
    pub fn open_requests(&self) -> usize {
        self.open.borrow().len()
    }

    /// Waits until a request is open.
    pub async fn busy(&self) {
        while self.open_requests() == 0 {
            self.opened.notified().await;
        }
    }

    /// A new id of this shard.
    pub fn next_id(&self) -> RequestId {
        self.sequence.set(self.sequence.get() + 1);
        let worker = self.worker.load(Ordering::Relaxed);
        RequestId::new(worker, self.shard, self.sequence.get())
    }

    /// Submits the requests of one client request and opens their places in the table: all or none.
    ///
    /// # Errors
    /// The scheduler does not take them now.
    pub fn open(
        self: &Rc<Self>,
        openings: Vec<Opening>,
        origin: &Origin,
    ) -> Result<Vec<RequestGuard>, SendError> {
        let worker = self.worker.load(Ordering::Relaxed);
        if (openings.iter()).any(|opening| opening.request.id.worker() != worker) {
            // A node that got another number meanwhile: the answer would not find it.
            return Err(SendError::NotReady);
        }
        let mut requests = Vec::with_capacity(openings.len());
        let mut places = Vec::with_capacity(openings.len());
        for opening in openings {
            let Opening {
                permit,
                turn,
                request,
                form,
            } = opening;
            places.push((request.id, request.prompt.len() as u32, permit, turn, form));
            requests.push(request);
        }
        let timed = requests.iter().any(|request| request.deadline_ms.is_some());
        self.outbox.send(
            &Submit {
                requests,
                ..Submit::default()
            }
            .into(),
        )?;
        if let Some((_, _, permit, _, _)) = places.first().filter(|_| timed) {
            let ids = places.iter().map(|(id, ..)| *id).collect();
            self.gate.submitted(permit, ids);
        }
        let enter = |(id, prompt_tokens, mut permit, turn, form): Placed| {
            self.metrics.prompt_tokens.inc_by(u64::from(prompt_tokens));
            let outlet = Outlet::new(form, prompt_tokens, origin.clone(), turn);
            let outlet = Rc::new(RefCell::new(outlet));
            self.open.borrow_mut().insert(id, outlet.clone());
            permit.spend();
            RequestGuard {
                id,
                outlet,
                permit,
                router: self.clone(),
            }
        };
        let guards = places.into_iter().map(enter).collect();
        self.opened.notify_waiters();
        Ok(guards)
    }

    /// Hands the rows of one step to their responses. The columns of a frame fit together, as the wire sees to; what
    /// does not belong to any row is ignored.
    pub fn deliver(&self, frame: TextFrame) {
        let now = Instant::now();
        for first in &frame.first {
            if let Some(&id) = frame.ids.get(first.row as usize) {
                self.first(RequestId(id), first);
            }
        }
        let tokens = frame.counts.iter().map(|count| u64::from(*count)).sum();
        self.metrics.generation_tokens.inc_by(tokens);
        self.push_rows(&frame, now);
        for finished in frame.finished {
            let Some(&id) = frame.ids.get(finished.row as usize) else {
                continue;
            };
            let outcome = finished.outcome;
            let end = match outcome.reason {
                FinishReason::Error => {
                    End::Failed(ApiError::from_status(outcome.status, &outcome.message))
                }
                _ => End::Finished(outcome),
            };
            self.end(RequestId(id), end, now);
        }
    }

    /// Writes what frames have brought for responses on HTTP/1.1. To be called when no further frame is at hand: what
    /// several brought for one response then leaves in one write.
    pub fn flush(&self) {
        let mut room = Vec::new();
        for outlet in self.due.borrow_mut().drain(..) {
            outlet.borrow_mut().leave(&mut room);
        }
    }

    fn first(&self, id: RequestId, first: &First) {
        if let Some(outlet) = self.open.borrow().get(&id) {
            outlet.borrow_mut().usage.cached_tokens = first.cached_tokens;
            self.metrics.scheduled(first.queue_us, first.prefill_us);
        }
    }

    fn push_rows(&self, frame: &TextFrame, now: Instant) {
        let open = self.open.borrow();
        let mut extras = Extras::of(frame);
        let mut start = 0;
        for (index, ((id, count), end)) in (0..).zip(
            frame
                .ids
                .iter()
                .zip(frame.counts.iter())
                .zip(frame.ends.iter()),
        ) {
            let id = RequestId(*id);
            let row = Row {
                text: frame.text.get(start..*end as usize).unwrap_or_default(),
                tokens: *count,
                ..extras
                    .as_mut()
                    .map_or_else(Row::default, |extras| extras.take(index))
            };
            start = *end as usize;
            let Some(outlet) = open.get(&id) else {
                tracing::debug!(id = %id, "row of a request that is not open");
                continue;
            };
            let mut state = outlet.borrow_mut();
            state.push(&row, now, &self.metrics);
            if row.tokens > 0 {
                self.gate.used(&state.tenant, row.tokens, now);
            }
            if state.wire.is_some() && !state.due {
                state.due = true;
                self.due.borrow_mut().push(outlet.clone());
            }
            if state.waiting.len() > self.limits.buffer_bytes
                && matches!(state.form, Form::Events(_))
            {
                if state.waiting.len() > 4 * self.limits.buffer_bytes + state.allowance {
                    state.cut();
                } else if state.stalled.is_none() {
                    state.stalled = Some(now);
                    self.stalled.watch(outlet, &mut state);
                }
            }
        }
    }

    fn end(&self, id: RequestId, end: End, now: Instant) {
        let Some(outlet) = self.open.borrow_mut().remove(&id) else {
            tracing::debug!(id = %id, "end of a request that is not open");
            return;
        };
        let mut state = outlet.borrow_mut();
        log_end(id, &end, &state, now);
        state.finish(end, now, &self.metrics);
        // What follows a text is not in its outlet: it has a deadline of its own.
        if matches!(state.form, Form::Events(_)) {
            self.stalled.watch(&outlet, &mut state);
        }
    }

    /// Ends every open request with `error`: the core is gone, or the worker has waited long enough.
    pub fn fail_all(&self, error: &ApiError) {
        self.fail(error, |_| true);
    }

    /// Ends the open requests that are `lost`, with `error`.
    pub fn fail(&self, error: &ApiError, lost: impl Fn(RequestId) -> bool) {
        let now = Instant::now();
        let open = self.open.borrow();
        let ids: Vec<RequestId> = open.keys().copied().filter(|id| lost(*id)).collect();
        drop(open);
        for &id in &ids {
            self.end(id, End::Failed(error.clone()), now);
        }
        // Whatever part of the core still lives need not go on.
        self.abort(ids);
    }

    /// Ends requests that cannot make it any more, where others want their room.
    fn drop_late(&self, ids: Vec<RequestId>) {
        let now = Instant::now();
        for &id in &ids {
            self.end(id, End::Failed(Refusal::too_late().error), now);
        }
        self.abort(ids);
    }

    /// The response of `id` was dropped.
    fn left(&self, id: RequestId) {
        let Some(outlet) = self.open.borrow_mut().remove(&id) else {
            return;
        };
        let state = outlet.borrow();
        self.metrics.ended(FinishReason::Abort);
        let completion_tokens = state.usage.completion_tokens;
        tracing::info!(id = %id, request_id = &*state.label, completion_tokens, "client left");
        self.abort(vec![id]);
    }

    fn abort(&self, ids: Vec<RequestId>) {
        if ids.is_empty() {
            return;
        }
        // An abort is refused only while the core cannot be reached, and then it has no request to abort.
        let _ = self.outbox.send(
            &Abort {
                ids,
                ..Abort::default()
            }
            .into(),
        );
    }

    /// Cuts streams whose readers make no progress. Runs as long as the shard; sleeps while none is watched.
    pub async fn watch_stalls(&self) {
        loop {
            self.stalled.any().await;
            tokio::time::sleep(self.limits.stall_timeout / 4).await;
            self.stalled.sweep(self.limits.stall_timeout);
        }
    }

    /// Sends a comment on streams that would otherwise be silent for too long: proxies take those for dead. Runs as
    /// long as the shard; sleeps while no request is open.
    pub async fn ping_silent(&self) {
        let Some(interval) = self.limits.ping_interval else {
            return;
        };
        let period = interval / 4;
        loop {
            self.busy().await;
            tokio::time::sleep(period).await;
            let now = Instant::now();
            for outlet in self.open.borrow().values() {
                // Who is passed over now will have been silent for no longer than the interval next time.
                outlet.borrow_mut().ping(now, interval - period);
            }
        }
    }
}
