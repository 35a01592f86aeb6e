//! Where a request's results flow out to its response.

use std::rc::Rc;
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use llmrt_wire::{FinishReason, Outcome, RequestId};

use super::guard::PIECE;
use crate::api::{ApiError, Row, Told, Usage};
use crate::gate::Turn;
use crate::metrics::Metrics;
use crate::server::{Hangup, Wire, Written};
use crate::tenants::Tenant;

/// A comment, which clients of Server-Sent Events skip.
const PING: &[u8] = b": ping\n\n";

/// How a request ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    Finished(Outcome),
    Failed(ApiError),
}

/// Turns results into the bytes of a streamed response. One per stream; it knows the stream's constant parts.
pub trait EventWriter {
    /// Appends the event of a row that is not silent; `usage` is that so far.
    fn row(&mut self, row: &Row, usage: Usage, out: &mut BytesMut);
    /// Appends the closing events of a finished request.
    fn finish(&mut self, outcome: &Outcome, usage: Usage, out: &mut BytesMut);
    /// Appends the closing events of a failed request.
    fn fail(&mut self, error: &ApiError, out: &mut BytesMut);
}

/// The HTTP request behind a generation.
#[derive(Clone)]
pub struct Origin {
    /// Its `x-request-id`: logged, never a key.
    pub label: Rc<str>,
    /// Who sent it.
    pub tenant: Rc<Tenant>,
    pub arrived: Instant,
}

/// The form in which results leave.
pub enum Form {
    /// Bytes of a streamed response, woken at each step.
    Events(Box<dyn EventWriter>),
    /// Plain text, woken once at the end, and what is told beside it if that is asked for.
    Text(Option<Box<Told>>),
}

/// One open request: what has arrived for its response and was not taken yet.
pub struct Outlet {
    pub(super) form: Form,
    /// Bytes that wait for the response.
    pub(super) waiting: BytesMut,
    /// Bytes that may wait beyond the router's bounds: a prompt is told in one piece, whatever its length.
    pub(super) allowance: usize,
    pub(super) usage: Usage,
    pub(super) end: Option<End>,
    pub(super) waker: Option<Waker>,
    pub(super) hangup: Hangup,
    /// The way past the response, where there is one.
    pub(super) wire: Option<Wire>,
    /// Whether the router will let leave by it what waits.
    pub(super) due: bool,
    /// Since when too much waits, or the end waits, without the reader's progress.
    pub(super) stalled: Option<Instant>,
    /// Whether the watch over stalls holds this outlet.
    pub(super) watched: bool,
    /// The request's id as its client knows it.
    pub(super) label: Rc<str>,
    pub(super) tenant: Rc<Tenant>,
    /// Held until the end.
    turn: Option<Turn>,
    pub(super) arrived: Instant,
    pub(super) first_token: Option<Instant>,
    last_token: Instant,
    /// When something was last written to the response.
    last_event: Instant,
}

impl Outlet {
    pub(super) fn new(form: Form, prompt_tokens: u32, origin: Origin, turn: Option<Turn>) -> Self {
        Self {
            form,
            waiting: BytesMut::new(),
            allowance: 0,
            usage: Usage {
                prompt_tokens,
                ..Usage::default()
            },
            end: None,
            waker: None,
            hangup: Hangup::current(),
            wire: None,
            due: false,
            stalled: None,
            watched: false,
            label: origin.label,
            tenant: origin.tenant,
            turn,
            arrived: origin.arrived,
            first_token: None,
            last_token: origin.arrived,
            last_event: origin.arrived,
        }
    }

    /// Takes a row of a step's frame.
    pub(super) fn push(&mut self, row: &Row, now: Instant, metrics: &Metrics) {
        if row.tokens > 0 {
            self.count(row.tokens, now, metrics);
        }
        if row.is_silent() {
            return;
        }
        match &mut self.form {
            Form::Text(told) => {
                self.waiting.extend_from_slice(row.text.as_bytes());
                if let Some(told) = told {
                    told.add(row);
                }
            }
            Form::Events(writer) => {
                let before = self.waiting.len();
                writer.row(row, self.usage, &mut self.waiting);
                if row.prompt.is_some() {
                    self.allowance = self.waiting.len() - before;
                }
                self.last_event = now;
                if self.wire.is_none() {
                    self.wake();
                }
            }
        }
    }

    fn count(&mut self, tokens: u32, now: Instant, metrics: &Metrics) {
        self.usage.completion_tokens += tokens;
        if self.first_token.is_none() {
            self.first_token = Some(now);
            if let Some(turn) = &self.turn {
                turn.begun();
            }
            metrics.time_to_first_token.observe(now - self.arrived);
        } else {
            metrics
                .inter_token_latency
                .observe_each((now - self.last_token) / tokens, tokens);
        }
        self.last_token = now;
    }

    /// Writes a comment to a stream that has been silent for `silence`, unless its reader has not even read what came
    /// before.
    pub(super) fn ping(&mut self, now: Instant, silence: Duration) {
        let is_silent = now.saturating_duration_since(self.last_event) >= silence;
        if is_silent && self.waiting.is_empty() && matches!(self.form, Form::Events(_)) {
            self.waiting.extend_from_slice(PING);
            self.last_event = now;
            self.wake();
        }
    }

    /// Ends the request; nothing may be pushed afterwards.
    pub(super) fn finish(&mut self, end: End, now: Instant, metrics: &Metrics) {
        if let Form::Events(writer) = &mut self.form {
            match &end {
                End::Finished(outcome) => writer.finish(outcome, self.usage, &mut self.waiting),
                End::Failed(error) => writer.fail(error, &mut self.waiting),
            }
        }
        metrics.ended(reason(&end));
        metrics.e2e_request_latency.observe(now - self.arrived);
        if let Some(first) = self.first_token {
            metrics.request_decode_time.observe(now - first);
        }
        self.end = Some(end);
        self.turn = None;
        self.stalled.get_or_insert(now);
        self.wake();
    }

    /// Writes what waits by the wire, or wakes the response. `room` is for whatever needs a buffer.
    pub(super) fn leave(&mut self, room: &mut Vec<u8>) {
        self.due = false;
        // An empty chunk would be the last.
        if self.waiting.is_empty() {
            return;
        }
        let written = match &self.wire {
            // The last chunk is hyper's, and so is what would not fit into a socket.
            Some(wire) if self.end.is_none() && self.waiting.len() <= PIECE => {
                wire.write_chunk(&self.waiting, room)
            }
            _ => Written::Not,
        };
        if written != Written::Not {
            self.waiting.clear();
            self.stalled = None;
        }
        if written != Written::Whole {
            self.wake();
        }
    }

    /// Ends the response itself, whose reader is too slow. Its guard then does the rest.
    pub(super) fn cut(&mut self) {
        tracing::info!(
            request_id = &*self.label,
            "response cut: its reader is too slow"
        );
        self.waiting.clear();
        self.wire = None;
        self.hangup.cut();
    }

    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }

    /// Tokens per second after the first token.
    pub(super) fn tokens_per_second(&self) -> f64 {
        match self.first_token {
            Some(first) if self.usage.completion_tokens > 1 && self.last_token > first => {
                f64::from(self.usage.completion_tokens - 1)
                    / (self.last_token - first).as_secs_f64()
            }
            _ => 0.0,
        }
    }
}

/// The finish reason under which an end is counted.
pub(super) fn reason(end: &End) -> FinishReason {
    match end {
        End::Finished(outcome) => outcome.reason,
        End::Failed(_) => FinishReason::Error,
    }
}

/// Writes the line about a request that has ended.
pub(super) fn log_end(id: RequestId, end: &End, state: &Outlet, now: Instant) {
    let usage = state.usage;
    let key = state.tenant.name();
    let key = key.as_deref();
    let ttft_ms = state
        .first_token
        .map(|first| (first - state.arrived).as_millis() as u64);
    let total_ms = (now - state.arrived).as_millis() as u64;
    match end {
        End::Finished(outcome) => tracing::info!(
            id = %id,
            request_id = &*state.label,
            key,
            reason = ?outcome.reason,
            prompt_tokens = usage.prompt_tokens,
            cached_tokens = usage.cached_tokens,
            completion_tokens = usage.completion_tokens,
            ttft_ms,
            total_ms,
            tokens_per_s = format_args!("{:.1}", state.tokens_per_second()),
            "finished"
        ),
        End::Failed(error) => {
            tracing::warn!(id = %id, request_id = &*state.label, key, total_ms, %error, "failed")
        }
    }
}
