//! One open request: its half-decoded bytes, its stop strings and what its next row must tell.

use llmrt_text::decode::{Decoding, TokenDecoder};
use llmrt_text::stop::StopMatcher;
use llmrt_wire::{FinishReason, First, LogprobRow, Opened, Outcome, PromptLogprobs};

use crate::told::Told;

/// Text of an open request as it grows.
pub struct Stream {
    decoding: Decoding,
    stops: Option<Stops>,
    include_stop: bool,
    /// Tokens so far.
    tokens: u32,
    /// Tokens since the last row that was sent.
    unreported: u32,
    first: Option<First>,
    /// Whether ids are told of every token.
    token_ids: bool,
    told: Option<Box<Told>>,
}

/// What a request gets with a step.
pub struct Arrival<'f> {
    pub tokens: &'f [u32],
    pub logprobs: Option<LogprobRow<'f>>,
    pub prompt_logprobs: Option<PromptLogprobs>,
    pub first: Option<First>,
    /// The scheduler's, if it ended the request with this step.
    pub outcome: Option<Outcome>,
}

/// What a row that is sent now stands for.
pub struct Report {
    /// Tokens since the last one.
    pub tokens: u32,
    /// The first token's facts.
    pub first: Option<First>,
    pub told: Option<Box<Told>>,
}

struct Stops {
    strings: Vec<String>,
    matcher: StopMatcher,
    /// Tokens in which stop strings are not looked for.
    min_tokens: u32,
    /// What a token decodes to before the matcher has seen it.
    piece: String,
}

impl Stream {
    pub fn new(decoder: &TokenDecoder, opened: Opened) -> Self {
        let output = opened.output;
        let stops = StopMatcher::new(&output.stop, output.include_stop).map(|matcher| Stops {
            strings: output.stop,
            matcher,
            min_tokens: output.min_tokens,
            piece: String::new(),
        });
        Self {
            decoding: decoder.start(&opened.prompt_tail, output.skip_special_tokens),
            stops,
            include_stop: output.include_stop,
            tokens: 0,
            unreported: 0,
            first: None,
            token_ids: output.token_ids,
            told: None,
        }
    }

    /// What has not been reported yet.
    pub fn report(&mut self) -> Report {
        Report {
            tokens: std::mem::take(&mut self.unreported),
            first: self.first.take(),
            told: self.told.take(),
        }
    }

    /// Takes what a step brought and appends what can be shown to `out`. Returns how the request ended, if it did.
    ///
    /// Tokens behind the one that completes a stop string are neither shown nor counted.
    pub fn advance(
        &mut self,
        decoder: &TokenDecoder,
        arrival: Arrival,
        out: &mut String,
    ) -> Option<Outcome> {
        let before = self.tokens;
        self.first = arrival.first.or_else(|| self.first.take());
        let outcome = self.read(decoder, arrival.tokens, arrival.outcome, out);
        let counted = (self.tokens - before) as usize;
        if self.token_ids || arrival.logprobs.is_some() {
            let told = self.told.get_or_insert_default();
            told.push(&arrival.tokens[..counted], arrival.logprobs);
        }
        if arrival.prompt_logprobs.is_some() {
            self.told.get_or_insert_default().prompt = arrival.prompt_logprobs;
        }
        outcome
    }

    fn read(
        &mut self,
        decoder: &TokenDecoder,
        tokens: &[u32],
        outcome: Option<Outcome>,
        out: &mut String,
    ) -> Option<Outcome> {
        for (position, &token) in tokens.iter().enumerate() {
            self.tokens = self.tokens.saturating_add(1);
            self.unreported = self.unreported.saturating_add(1);
            let last = position + 1 == tokens.len();
            if last && self.hides(token, outcome.as_ref()) {
                break;
            }
            if let Some(stopped) = self.push(decoder, token, out) {
                return Some(stopped);
            }
        }
        let outcome = outcome?;
        Some(self.finish(decoder, out).unwrap_or(outcome))
    }

    /// A stop token ends the request without being part of its text.
    fn hides(&self, token: u32, outcome: Option<&Outcome>) -> bool {
        !self.include_stop && outcome.is_some_and(|outcome| outcome.stop_token == Some(token))
    }

    fn push(&mut self, decoder: &TokenDecoder, token: u32, out: &mut String) -> Option<Outcome> {
        let Some(stops) = &mut self.stops else {
            decoder.push(&mut self.decoding, token, out);
            return None;
        };
        decoder.push(&mut self.decoding, token, &mut stops.piece);
        stops.look(self.tokens, out)
    }

    /// Releases what decoder and matcher held back.
    fn finish(&mut self, decoder: &TokenDecoder, out: &mut String) -> Option<Outcome> {
        let Some(stops) = &mut self.stops else {
            decoder.finish(&mut self.decoding, out);
            return None;
        };
        decoder.finish(&mut self.decoding, &mut stops.piece);
        let stopped = stops.look(self.tokens, out);
        if stopped.is_none() {
            stops.matcher.finish(out);
        }
        stopped
    }
}

impl Stops {
    /// Looks through the piece that token number `tokens` completed.
    fn look(&mut self, tokens: u32, out: &mut String) -> Option<Outcome> {
        let armed = tokens > self.min_tokens;
        let index = self.matcher.push(&self.piece, armed, out);
        self.piece.clear();
        Some(Outcome {
            reason: FinishReason::Stop,
            stop_token: None,
            stop_string: Some(std::mem::take(self.strings.get_mut(index?)?)),
            status: 0,
            message: String::new(),
        })
    }
}
