//! One open request: its half-decoded bytes, its stop strings and what its next row must tell.

use llmrt_text::decode::{Decoding, TokenDecoder};
use llmrt_text::stop::StopMatcher;
use llmrt_wire::{FinishReason, First, Opened, Outcome};

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
        }
    }

    /// Keeps what is known with the first token for the request's next row.
    pub fn set_first(&mut self, first: First) {
        self.first = Some(first);
    }

    /// What a row that is sent now stands for: tokens since the last one, and the first token's facts.
    pub fn report(&mut self) -> (u32, Option<First>) {
        (std::mem::take(&mut self.unreported), self.first.take())
    }

    /// Takes a row's tokens and appends what can be shown to `out`; `outcome` is the scheduler's, if it ended the
    /// request with this row. Returns how the request ended, if it did.
    ///
    /// Tokens behind the one that completes a stop string are neither shown nor counted.
    pub fn advance(
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
