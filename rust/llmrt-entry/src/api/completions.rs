//! `POST /v1/completions`.

use std::borrow::Cow;

use super::error::ApiError;
use super::field;
use super::json::{Json, parse_object};
use super::options::Options;
use super::{Endpoint, Limits};

/// What is to be continued.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    Text(String),
    /// Ids of the model's vocabulary.
    Tokens(Vec<u32>),
}

impl Prompt {
    /// Its text, if it came as one.
    pub fn text(&self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text.clone()),
            Self::Tokens(_) => None,
        }
    }
}

/// A checked completion request.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletionRequest {
    /// At least one, and with [`super::details::Details::n`] answers to each not too many.
    pub prompts: Vec<Prompt>,
    pub options: Options,
}

impl CompletionRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// 400 that names the field at fault.
    pub fn parse(body: &[u8], limits: &Limits) -> Result<Self, ApiError> {
        let mut options = Options::new(Endpoint::Completions, limits);
        let mut prompts = None;
        for (name, value) in parse_object(body)? {
            match name.as_ref() {
                "prompt" if value != Json::Null => prompts = Some(read_prompts(value, limits)?),
                _ => options.take(&name, value, limits)?,
            }
        }
        options.check()?;
        let prompts = prompts.ok_or_else(|| field::invalid(&"prompt", "is required"))?;
        let (count, n) = (prompts.len(), options.details.n);
        if count as u64 * u64::from(n) > u64::from(limits.max_choices) {
            let most = limits.max_choices;
            let reason = format_args!(
                "asks for {count} times {n} answers; at most {most} are allowed in one request"
            );
            return Err(field::invalid(&"prompt", reason));
        }
        Ok(Self { prompts, options })
    }
}

/// Reads a prompt or a list of prompts; a prompt is a string or a list of token ids.
fn read_prompts(value: Json, limits: &Limits) -> Result<Vec<Prompt>, ApiError> {
    match value {
        Json::String(text) => Ok(vec![read_text("prompt", text)?]),
        Json::Array(items) => match items.first() {
            None => Err(empty("prompt")),
            Some(Json::String(_) | Json::Array(_)) => read_list(items, limits),
            Some(_) => Ok(vec![read_tokens("prompt", items, limits)?]),
        },
        other => Err(field::expected(
            &"prompt",
            &"a string, an array of token ids, or an array of these",
            &other,
        )),
    }
}

fn read_list(items: Vec<Json>, limits: &Limits) -> Result<Vec<Prompt>, ApiError> {
    let (count, most) = (items.len(), limits.max_choices);
    if count > most as usize {
        let reason = format_args!("has {count} prompts; at most {most} are allowed");
        return Err(field::invalid(&"prompt", reason));
    }
    let read = |(index, item)| {
        let path = format!("prompt[{index}]");
        match item {
            Json::String(text) => read_text(&path, text),
            Json::Array(items) if items.is_empty() => Err(empty(&path)),
            Json::Array(items) => read_tokens(&path, items, limits),
            other => {
                let wanted = "a string or an array of token ids, as the first prompt is one";
                Err(field::expected(&path, &wanted, &other))
            }
        }
    };
    items.into_iter().enumerate().map(read).collect()
}

fn read_text(path: &str, text: Cow<str>) -> Result<Prompt, ApiError> {
    if text.is_empty() {
        return Err(empty(path));
    }
    Ok(Prompt::Text(text.into_owned()))
}

/// Token ids, at most as many as a prompt may have, unless its beginning may be left out.
fn read_tokens(path: &str, items: Vec<Json>, limits: &Limits) -> Result<Prompt, ApiError> {
    let count = items.len();
    field::token_ids(&path, Json::Array(items), limits.vocab_size, count).map(Prompt::Tokens)
}

fn empty(path: &str) -> ApiError {
    field::invalid(&path, "is empty; there is nothing to continue")
}
