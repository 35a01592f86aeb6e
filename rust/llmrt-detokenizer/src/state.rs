//! What the detokenizer knows of all requests, and what one step makes of it.

use std::collections::hash_map::Entry;
use std::iter::Peekable;

use llmrt_text::decode::TokenDecoder;
use llmrt_wire::{Ended, FinishReason, IdMap, Opened, Outcome, RequestId, TextFrame, TokenFrame};
use serde::Serialize;

use crate::cut::{Cut, Row};
use crate::stream::{Arrival, Stream};

/// The detokenizer without its links.
pub struct State {
    decoder: TokenDecoder,
    requests: IdMap<Slot>,
    stats: Stats,
    /// Text of the row at hand; kept for its memory.
    text: String,
}

enum Slot {
    Open(Box<Stream>),
    /// A stop string ended it, and the scheduler has yet to say so: tokens that were under way are ignored.
    Stopped,
}

/// Counts since the start, and what is held now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Requests whose text is growing.
    pub open: usize,
    /// Requests that a stop string ended and that the scheduler has not closed yet.
    pub stopped: usize,
    pub steps: u64,
    pub tokens: u64,
    /// Requests that a stop string ended before the scheduler did, ever.
    pub stop_strings: u64,
}

impl State {
    pub fn new(decoder: TokenDecoder) -> Self {
        Self {
            decoder,
            requests: IdMap::default(),
            stats: Stats::default(),
            text: String::new(),
        }
    }

    /// One step: the text to show, cut by entry worker, and the requests that a stop string ended.
    ///
    /// A row stands in a text frame when it has text or has ended; a request's token counts and its first token's facts
    /// wait for its next row. The columns of a frame fit together, as the wire sees to; rows of unknown requests are
    /// ignored.
    pub fn step(&mut self, mut frame: TokenFrame) -> (Vec<(u16, TextFrame)>, Ended) {
        let mut ended = Ended::default();
        self.stats.steps += 1;
        self.stats.tokens += frame.tokens.len() as u64;
        for opened in frame.opened {
            self.open(opened);
        }

        // Usually they are in order already, but nothing on the wire demands it.
        frame.first.sort_by_key(|first| first.row);
        frame.finished.sort_by_key(|finished| finished.row);
        frame.prompt_logprobs.sort_by_key(|prompt| prompt.row);
        let mut first = frame.first.into_iter().peekable();
        let mut finished = frame.finished.into_iter().peekable();
        let mut prompts = frame.prompt_logprobs.into_iter().peekable();
        let logprobs = frame.logprobs.as_ref();
        let mut logprobs = logprobs
            .into_iter()
            .flat_map(|logprobs| logprobs.iter(&frame.counts))
            .peekable();
        let mut cut = Cut::new(frame.step, frame.ids.len());
        let mut tokens = frame.tokens.as_slice();
        for (row, (&id, &count)) in (0..).zip(frame.ids.iter().zip(frame.counts.iter())) {
            let (own, rest) = tokens.split_at(tokens.len().min(count as usize));
            tokens = rest;
            let id = RequestId(id);
            let finished = last_up_to(&mut finished, |finished| finished.row <= row);
            let arrival = Arrival {
                tokens: own,
                logprobs: last_up_to(&mut logprobs, |(of, _)| *of <= row).map(|(_, values)| values),
                prompt_logprobs: last_up_to(&mut prompts, |prompt| prompt.row <= row),
                first: last_up_to(&mut first, |first| first.row <= row),
                outcome: finished.map(|finished| finished.outcome),
            };
            if self.row(id, arrival, &mut cut) {
                ended.ids.push(id);
            }
        }
        self.stats.stop_strings += ended.ids.len() as u64;
        (cut.into_frames(), ended)
    }

    /// Ends every open request with an error and forgets all: the scheduler that owned them is gone.
    pub fn fail_all(&mut self, status: u16, message: &str) -> Vec<(u16, TextFrame)> {
        let mut cut = Cut::new(0, self.requests.len());
        for (id, slot) in self.requests.drain() {
            if let Slot::Open(stream) = slot {
                cut.add(failed(id, *stream, status, message));
            }
        }
        cut.into_frames()
    }

    /// Ends the open requests of a worker that cannot be reached with an error: their text would have a hole.
    ///
    /// Returns what to tell the worker, should it come back, and what to tell the scheduler.
    pub fn fail_worker(
        &mut self,
        worker: u16,
        status: u16,
        message: &str,
    ) -> (Option<TextFrame>, Ended) {
        let mut cut = Cut::new(0, 0);
        let mut ended = Ended::default();
        for (&id, slot) in self
            .requests
            .iter_mut()
            .filter(|(id, _)| id.worker() == worker)
        {
            if let Slot::Open(stream) = std::mem::replace(slot, Slot::Stopped) {
                cut.add(failed(id, *stream, status, message));
                ended.ids.push(id);
            }
        }
        (cut.into_frames().pop().map(|(_, frame)| frame), ended)
    }

    pub fn stats(&self) -> Stats {
        let open = self
            .requests
            .values()
            .filter(|slot| matches!(slot, Slot::Open(_)))
            .count();
        Stats {
            open,
            stopped: self.requests.len() - open,
            ..self.stats.clone()
        }
    }

    fn open(&mut self, opened: Opened) {
        let id = opened.id;
        let stream = Slot::Open(Box::new(Stream::new(&self.decoder, opened)));
        if let Some(Slot::Open(_)) = self.requests.insert(id, stream) {
            tracing::warn!(%id, "a request was opened twice; its first text is lost");
        }
    }

    /// One row; true when the scheduler must be told that the request has ended.
    fn row(&mut self, id: RequestId, arrival: Arrival, cut: &mut Cut) -> bool {
        let Entry::Occupied(mut slot) = self.requests.entry(id) else {
            tracing::debug!(%id, "row of an unknown request ignored");
            return false;
        };
        let closed = arrival.outcome.is_some();
        let Slot::Open(stream) = slot.get_mut() else {
            if closed {
                slot.remove();
            }
            return false;
        };
        self.text.clear();
        let outcome = stream.advance(&self.decoder, arrival, &mut self.text);
        let over = outcome.is_some();
        if over || !self.text.is_empty() {
            cut.add(Row {
                id,
                text: &self.text,
                report: stream.report(),
                outcome,
            });
        }
        if closed {
            slot.remove();
        } else if over {
            slot.insert(Slot::Stopped);
        }
        over && !closed
    }
}

/// Takes the marks up to a row out of marks in order; returns the last, which is the row's own.
fn last_up_to<T>(
    marks: &mut Peekable<impl Iterator<Item = T>>,
    is_up_to: impl Fn(&T) -> bool,
) -> Option<T> {
    std::iter::from_fn(|| marks.next_if(&is_up_to)).last()
}

/// The end of a request that failed.
pub(crate) fn failure(status: u16, message: &str) -> Outcome {
    Outcome {
        reason: FinishReason::Error,
        stop_token: None,
        stop_string: None,
        status,
        message: message.to_owned(),
    }
}

fn failed(id: RequestId, mut stream: Stream, status: u16, message: &str) -> Row<'static> {
    Row {
        id,
        text: "",
        report: stream.report(),
        outcome: Some(failure(status, message)),
    }
}
