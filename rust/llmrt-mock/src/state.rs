//! What the engine knows of all requests, and what one step makes of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use llmrt_link::PeerId;
use llmrt_wire::{
    FinishReason, Finished, First, Opened, Outcome, Output, PromptLogprobs, Request, RequestId,
    TokenFrame,
};

use crate::limits::{Limits, PAGE_SIZE};
use crate::logprobs;
use crate::pattern::{Pattern, mix};
use crate::request::{Row, Waiting, accept, check};
use crate::stats::Stats;

/// What clients read whose text got lost.
const DETOKENIZER_LOST: &str = "the text of this answer got lost with a process of the server";

/// What a step leaves to be sent.
#[derive(Debug, Default)]
pub struct StepOutput {
    /// A frame for each detokenizer that has something to be told, by its number.
    pub frames: Vec<(usize, TokenFrame)>,
    /// Requests of each peer that have ended.
    pub credit: HashMap<PeerId, u32>,
}

enum Place {
    Running(usize),
    Waiting(u64),
}

/// The engine without its links.
pub struct State {
    limits: Limits,
    pattern: Pattern,
    /// Whether tokens of the pattern may end an answer, or are replaced where they would.
    may_end: bool,
    places: HashMap<RequestId, Place>,
    running: Vec<Row>,
    /// By order of arrival.
    waiting: BTreeMap<u64, Waiting>,
    arrivals: u64,
    /// Of requests that may have ended by now.
    deadlines: BTreeSet<(Instant, RequestId)>,
    frames: Vec<TokenFrame>,
    credit: HashMap<PeerId, u32>,
    stats: Stats,
}

impl State {
    pub fn new(limits: Limits, pattern: Pattern) -> Self {
        Self {
            may_end: matches!(pattern, Pattern::Tokens { .. }),
            frames: vec![TokenFrame::default(); limits.detokenizers],
            pattern,
            limits,
            places: HashMap::new(),
            running: Vec::new(),
            waiting: BTreeMap::new(),
            arrivals: 0,
            deadlines: BTreeSet::new(),
            credit: HashMap::new(),
            stats: Stats::default(),
        }
    }

    /// Takes a request in; one that can never run gets its error with the next step.
    ///
    /// A second one of a living id is dropped: an answer could not say which of the two it means.
    pub fn submit(&mut self, request: Request, owner: PeerId, now: Instant) {
        if self.places.contains_key(&request.id) {
            tracing::error!(id = %request.id, "a request was submitted twice; the second is dropped");
            *self.credit.entry(owner).or_default() += 1;
            return;
        }
        if let Err(message) = check(&request, &self.limits) {
            return self.refuse(request, owner, 400, message);
        }
        if self.places.len() >= self.limits.max_requests {
            let message = "too many requests are open; try again later".to_owned();
            return self.refuse(request, owner, 429, message);
        }
        self.arrivals += 1;
        let draw = match self.pattern {
            Pattern::Random { seed } => mix(seed.wrapping_add(self.arrivals)),
            _ => 0,
        };
        self.places
            .insert(request.id, Place::Waiting(self.arrivals));
        if let Some(ms) = request.deadline_ms {
            let deadline = now + Duration::from_millis(ms.into());
            self.deadlines.insert((deadline, request.id));
        }
        let waiting = accept(request, &self.limits, &self.pattern, draw, owner, now);
        self.waiting.insert(self.arrivals, waiting);
    }

    /// The clients of these requests have left; those of other peers and unknown ones are ignored.
    pub fn abort(&mut self, ids: &[RequestId], owner: PeerId) {
        for &id in ids {
            if self.owner(id) == Some(owner) {
                self.end(id, outcome(FinishReason::Abort));
            }
        }
    }

    /// A detokenizer found the ends of these requests.
    pub fn ended(&mut self, ids: &[RequestId]) {
        for &id in ids {
            self.end(id, outcome(FinishReason::Stop));
        }
    }

    /// A peer has left; nobody waits for its requests any more. Returns how many there were.
    pub fn leave(&mut self, owner: PeerId) -> usize {
        let orphans = self.requests_of(|row| row.owner == owner);
        for &id in &orphans {
            self.end(id, outcome(FinishReason::Abort));
        }
        self.credit.remove(&owner);
        orphans.len()
    }

    /// A detokenizer is gone. Its successor does not know the open requests, so they end; it is told so, and passes it
    /// on: a request may have been sent when it was there already. Returns how many there were.
    pub fn lose_detokenizer(&mut self, lane: usize) -> usize {
        let lost = self.requests_of(|row| row.lane == lane);
        for &id in &lost {
            self.frames[lane].opened.push(Opened {
                id,
                prompt_tail: Vec::new().into(),
                output: Output::default(),
            });
            let outcome = Outcome {
                status: 503,
                message: DETOKENIZER_LOST.to_owned(),
                ..outcome(FinishReason::Error)
            };
            self.end(id, outcome);
        }
        lost.len()
    }

    /// Whether a step would do anything.
    pub fn has_work(&self) -> bool {
        !self.running.is_empty()
            || !self.waiting.is_empty()
            || !self.credit.is_empty()
            || self.frames.iter().any(|frame| !frame.ids.is_empty())
    }

    /// Number of the next step.
    pub fn next_step(&self) -> u64 {
        self.stats.steps_total + 1
    }

    /// One step: admits what fits, then a token for every running request.
    pub fn step(&mut self, now: Instant) -> StepOutput {
        self.stats.steps_total += 1;
        self.expire(now);
        self.admit(now);
        let mut index = 0;
        while index < self.running.len() {
            match self.advance(index, now) {
                // The last row now stands here.
                Some(outcome) => self.retire(index, outcome),
                None => index += 1,
            }
        }
        self.take_output()
    }

    pub fn stats(&self) -> Stats {
        let held = self
            .running
            .iter()
            .map(|row| u64::from((row.prompt_tokens + row.generated).div_ceil(PAGE_SIZE)));
        Stats {
            num_requests_running: self.running.len(),
            num_requests_waiting: self.waiting.len(),
            kv_cache_usage_perc: held.sum::<u64>() as f64 / self.limits.pages() as f64,
            ..self.stats.clone()
        }
    }

    /// Ends the requests whose time is over.
    fn expire(&mut self, now: Instant) {
        while let Some(&(deadline, id)) = self.deadlines.first()
            && deadline <= now
        {
            self.deadlines.pop_first();
            let late = Outcome {
                status: 408,
                message: "the request did not end before its deadline (deadline_ms)".to_owned(),
                ..outcome(FinishReason::Error)
            };
            self.end(id, late);
        }
    }

    fn admit(&mut self, now: Instant) {
        while self.running.len() < self.limits.max_num_seqs
            && let Some((_, waiting)) = self.waiting.pop_first()
        {
            let mut row = waiting.row;
            row.admitted = now;
            let prompt = u64::from(row.prompt_tokens);
            self.stats.prompt_tokens_total += prompt;
            self.stats.prefix_cache_queries_total += prompt;
            self.stats.prefix_cache_hits_total += u64::from(self.cached(&row));
            self.frames[row.lane].opened.push(Opened {
                id: row.id,
                prompt_tail: waiting.prompt_tail.into(),
                output: waiting.output,
            });
            self.places
                .insert(row.id, Place::Running(self.running.len()));
            self.running.push(row);
        }
    }

    /// Gives a row its next token; returns how it ended with it, if it did.
    fn advance(&mut self, index: usize, now: Instant) -> Option<Outcome> {
        let row = &mut self.running[index];
        let token = row.next(&self.limits, self.may_end);
        let frame = &mut self.frames[row.lane];
        let place = frame.ids.len() as u32;
        let is_first = row.generated == 0;
        frame.ids.push(row.id.0);
        if row.max_tokens > 0 {
            frame.counts.push(1);
            frame.tokens.push(token);
            row.generated += 1;
            self.stats.generation_tokens_total += 1;
        } else {
            frame.counts.push(0);
        }
        if let Some(top) = row.logprobs.filter(|_| row.max_tokens > 0) {
            let values = frame.logprobs.get_or_insert_default();
            logprobs::push(values, place, token, top, self.limits.vocab_size);
        }
        if is_first {
            let values = row.prompt_logprobs.take();
            frame
                .prompt_logprobs
                .extend(values.map(|values| PromptLogprobs {
                    row: place,
                    ..*values
                }));
            let first = First {
                row: place,
                cached_tokens: self.limits.cached_tokens.min(row.prompt_tokens - 1),
                queue_us: (row.admitted - row.arrived).as_micros() as u64,
                prefill_us: (now - row.admitted).as_micros() as u64,
            };
            frame.first.push(first);
        }
        if row.generated > row.min_tokens && row.stops.contains(&token) {
            return Some(Outcome {
                stop_token: Some(token),
                ..outcome(FinishReason::Stop)
            });
        }
        (row.generated >= row.max_tokens).then(|| outcome(FinishReason::Length))
    }

    /// Ends the running request at `index`, whose row is the last of its frame.
    fn retire(&mut self, index: usize, outcome: Outcome) {
        let row = self.take_running(index);
        self.finish(row.lane, row.owner, outcome);
    }

    /// Ends a request without a token, wherever it is.
    fn end(&mut self, id: RequestId, outcome: Outcome) {
        let row = match self.places.get(&id) {
            Some(&Place::Running(index)) => self.take_running(index),
            Some(&Place::Waiting(arrival)) => {
                self.places.remove(&id);
                let Some(waiting) = self.waiting.remove(&arrival) else {
                    return;
                };
                self.frames[waiting.row.lane].opened.push(Opened {
                    id,
                    prompt_tail: waiting.prompt_tail.into(),
                    output: waiting.output,
                });
                waiting.row
            }
            None => return,
        };
        self.end_row(id, row.lane, row.owner, outcome);
    }

    fn refuse(&mut self, request: Request, owner: PeerId, status: u16, message: String) {
        let lane = request.id.detokenizer(self.limits.detokenizers);
        self.frames[lane].opened.push(Opened {
            id: request.id,
            prompt_tail: Vec::new().into(),
            output: request.output,
        });
        let outcome = Outcome {
            status,
            message,
            ..outcome(FinishReason::Error)
        };
        self.end_row(request.id, lane, owner, outcome);
    }

    /// Adds a row that only ends.
    fn end_row(&mut self, id: RequestId, lane: usize, owner: PeerId, outcome: Outcome) {
        let frame = &mut self.frames[lane];
        frame.ids.push(id.0);
        frame.counts.push(0);
        self.finish(lane, owner, outcome);
    }

    /// Marks the last row of a frame as ended.
    fn finish(&mut self, lane: usize, owner: PeerId, outcome: Outcome) {
        self.stats.finished(outcome.reason);
        let frame = &mut self.frames[lane];
        frame.finished.push(Finished {
            row: frame.ids.len() as u32 - 1,
            outcome,
        });
        *self.credit.entry(owner).or_default() += 1;
    }

    fn take_running(&mut self, index: usize) -> Row {
        let row = self.running.swap_remove(index);
        self.places.remove(&row.id);
        if let Some(moved) = self.running.get(index) {
            self.places.insert(moved.id, Place::Running(index));
        }
        row
    }

    fn take_output(&mut self) -> StepOutput {
        let step = self.stats.steps_total;
        let mut frames = Vec::new();
        for (lane, frame) in self.frames.iter_mut().enumerate() {
            if frame.ids.is_empty() {
                continue;
            }
            let mut full = std::mem::take(frame);
            full.step = step;
            for column in [&mut frame.counts, &mut frame.tokens] {
                column.reserve(full.ids.len());
            }
            frame.ids.reserve(full.ids.len());
            frames.push((lane, full));
        }
        StepOutput {
            frames,
            credit: std::mem::take(&mut self.credit),
        }
    }

    fn cached(&self, row: &Row) -> u32 {
        self.limits.cached_tokens.min(row.prompt_tokens - 1)
    }

    fn owner(&self, id: RequestId) -> Option<PeerId> {
        match *self.places.get(&id)? {
            Place::Running(index) => Some(self.running[index].owner),
            Place::Waiting(arrival) => self.waiting.get(&arrival).map(|waiting| waiting.row.owner),
        }
    }

    fn requests_of(&self, which: impl Fn(&Row) -> bool) -> Vec<RequestId> {
        let waiting = self.waiting.values().map(|waiting| &waiting.row);
        let all = self.running.iter().chain(waiting);
        all.filter(|row| which(row)).map(|row| row.id).collect()
    }
}

fn outcome(reason: FinishReason) -> Outcome {
    Outcome {
        reason,
        stop_token: None,
        stop_string: None,
        status: 0,
        message: String::new(),
    }
}
