//! What the core tells of an answer's tokens beside their text.

use llmrt_wire::{LogprobRow, PromptLogprobs};

/// What one step brings for one request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Row<'f> {
    pub text: &'f str,
    /// Number of tokens.
    pub tokens: u32,
    /// Their ids, of a request that asked.
    pub ids: &'f [u32],
    /// Their logprobs, of a request that asked.
    pub logprobs: LogprobRow<'f>,
    /// Logprobs of the prompt, once, of a request that asked.
    pub prompt: Option<&'f PromptLogprobs>,
}

impl Row<'_> {
    /// Whether there is nothing in it for the client.
    pub fn is_silent(&self) -> bool {
        self.text.is_empty() && self.ids.is_empty() && self.prompt.is_none()
    }
}

/// A token with its logprob and the likeliest tokens in its place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scored<'t> {
    pub id: u32,
    /// `None` for the first token of a prompt, before which there is nothing.
    pub logprob: Option<f32>,
    /// The likeliest tokens, best first; their logprobs are as many.
    pub top_ids: &'t [u32],
    pub top_logprobs: &'t [f32],
}

impl<'t> Scored<'t> {
    /// The `most` likeliest tokens with their logprobs.
    pub fn top(&self, most: u32) -> impl Iterator<Item = (u32, f32)> + use<'t> {
        let ids = self.top_ids.iter().copied();
        ids.zip(self.top_logprobs.iter().copied())
            .take(most as usize)
    }
}

/// Everything that was told of some tokens of one answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    pub ids: Vec<u32>,
    logprobs: Logprobs,
    prompt: Option<Logprobs>,
}

impl Told {
    /// Adds what `row` tells.
    pub fn add(&mut self, row: &Row) {
        self.ids.extend_from_slice(row.ids);
        self.logprobs.add(row.logprobs);
        if let Some(prompt) = row.prompt {
            self.prompt.get_or_insert_default().add(prompt.values());
        }
    }

    /// Bytes that it takes as JSON, about.
    pub fn json_size(&self) -> usize {
        const TOKEN: usize = 64;
        let prompt = self.prompt.as_ref().map_or(0, Logprobs::len);
        TOKEN * (self.ids.len() + self.logprobs.len() + prompt)
    }

    /// The tokens with their logprobs.
    pub fn scored(&self) -> impl Iterator<Item = Scored<'_>> {
        self.logprobs.of(&self.ids)
    }

    /// The tokens of `prompt` with their logprobs, as far as they were told.
    pub fn scored_prompt<'t>(&'t self, prompt: &'t [u32]) -> impl Iterator<Item = Scored<'t>> {
        let told = self.prompt.as_ref();
        let (first, rest) = match (told, prompt.split_first()) {
            (Some(told), Some((&first, rest))) => (Some(first), Some(told.of(rest))),
            _ => (None, None),
        };
        let first = first.map(|id| Scored {
            id,
            logprob: None,
            top_ids: &[],
            top_logprobs: &[],
        });
        first.into_iter().chain(rest.into_iter().flatten())
    }
}

/// Logprobs of consecutive tokens, each with `top` alternatives.
#[derive(Clone, Debug, Default, PartialEq)]
struct Logprobs {
    top: u32,
    chosen: Vec<f32>,
    top_ids: Vec<u32>,
    top_logprobs: Vec<f32>,
}

impl Logprobs {
    fn add(&mut self, row: LogprobRow) {
        if row.chosen.is_empty() {
            return;
        }
        self.top = row.top;
        self.chosen.extend_from_slice(row.chosen);
        self.top_ids.extend_from_slice(row.top_ids);
        self.top_logprobs.extend_from_slice(row.top_logprobs);
    }

    /// Values in it.
    fn len(&self) -> usize {
        self.chosen.len() + self.top_ids.len()
    }

    fn of<'t>(&'t self, ids: &'t [u32]) -> impl Iterator<Item = Scored<'t>> {
        let top = self.top as usize;
        let scored = move |(place, (&id, &logprob)): (usize, (&u32, &f32))| {
            let tops = place * top..(place + 1) * top;
            Scored {
                id,
                logprob: Some(logprob),
                top_ids: self.top_ids.get(tops.clone()).unwrap_or_default(),
                top_logprobs: self.top_logprobs.get(tops).unwrap_or_default(),
            }
        };
        ids.iter().zip(&self.chosen).enumerate().map(scored)
    }
}
