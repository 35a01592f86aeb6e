//! What a choice tells beside its text: logprobs, token ids, its prompt.

use std::sync::Arc;

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::Endpoint;
use super::details::Details;
use super::logprobs::{ChatLogprobs, CompletionLogprobs, Names, Offsets, PromptForm};
use super::told::Told;

/// Prompt tokens that decide how the text behind them begins; the core's decoder looks at as many.
const TAIL: usize = 16;

/// A prompt as an answer may tell it.
#[derive(Clone, Debug, Default)]
pub struct Prompted {
    pub tokens: Vec<u32>,
    /// Its text, for an answer that begins with it.
    pub echo: Option<String>,
    /// Whether that text is without the special tokens.
    pub skips_special: bool,
}

/// What is told with a chunk of a choice, or with all of it.
#[derive(Default)]
pub struct Parts {
    /// Text before that of the choice.
    pub echo: Option<Arc<Prompted>>,
    pub logprobs: Option<Box<RawValue>>,
    pub token_ids: Option<Vec<u32>>,
    pub prompt_token_ids: Option<Vec<u32>>,
    pub prompt_logprobs: Option<Box<RawValue>>,
}

impl Parts {
    /// The text that stands before the choice's own.
    pub fn before(&self) -> &str {
        let echo = self.echo.as_ref().and_then(|prompt| prompt.echo.as_deref());
        echo.unwrap_or_default()
    }
}

/// Makes the [`Parts`] of one choice.
pub struct Telling {
    endpoint: Endpoint,
    details: Arc<Details>,
    names: Names,
    prompt: Arc<Prompted>,
    /// Of the answer's own tokens.
    offsets: Offsets,
    /// Whether the prompt is told with the choice's first part.
    tells_prompt: bool,
}

impl Telling {
    /// For a choice that continues `prompt`; with `skip_special`, special tokens have no text in it.
    pub fn new(
        endpoint: Endpoint,
        details: Arc<Details>,
        names: Names,
        prompt: Arc<Prompted>,
        skip_special: bool,
        is_first: bool,
    ) -> Self {
        let tail = &prompt.tokens[prompt.tokens.len().saturating_sub(TAIL)..];
        let chars = prompt
            .echo
            .as_deref()
            .map_or(0, |text| text.chars().count());
        let offsets = Offsets::new(&names, tail, skip_special, chars);
        Self {
            endpoint,
            details,
            names,
            offsets,
            prompt,
            // A chat has one prompt, which is told beside its choices.
            tells_prompt: is_first || endpoint == Endpoint::Completions,
        }
    }

    /// The next part, which stands for the tokens of `told`.
    pub fn parts(&mut self, told: Told) -> Parts {
        let tells_prompt = std::mem::take(&mut self.tells_prompt);
        let details = self.details.clone();
        let mut parts = Parts::default();
        if let Some(most) = details.logprobs {
            parts.logprobs = self.logprobs(&told, most, tells_prompt && details.echo);
        }
        if tells_prompt {
            parts.echo = details.echo.then(|| self.prompt.clone());
            parts.prompt_token_ids = details.token_ids.then(|| self.prompt.tokens.clone());
            parts.prompt_logprobs = details.prompt_logprobs.and_then(|most| {
                let tokens = told.scored_prompt(&self.prompt.tokens);
                raw(&PromptForm::new(&self.names, tokens, most))
            });
        }
        parts.token_ids = details.token_ids.then_some(told.ids);
        parts
    }

    fn logprobs(&mut self, told: &Told, most: u32, with_prompt: bool) -> Option<Box<RawValue>> {
        let names = &self.names;
        if self.endpoint == Endpoint::Chat {
            return match told.ids.is_empty() {
                true => None,
                false => raw(&ChatLogprobs::new(names, told.scored(), most)),
            };
        }
        let mut form = CompletionLogprobs::default();
        if with_prompt {
            let mut offsets = Offsets::new(names, &[], self.prompt.skips_special, 0);
            for token in told.scored_prompt(&self.prompt.tokens) {
                form.push(names, &mut offsets, token, most);
            }
        }
        for token in told.scored() {
            form.push(names, &mut self.offsets, token, most);
        }
        if form.is_empty() { None } else { raw(&form) }
    }
}

/// JSON of plain data, which has no way to fail.
fn raw(value: &impl Serialize) -> Option<Box<RawValue>> {
    to_raw_value(value).ok()
}
