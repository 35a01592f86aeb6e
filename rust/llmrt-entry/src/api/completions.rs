//! `POST /v1/completions`.

use super::error::ApiError;
use super::field;
use super::json::{Json, parse_object};
use super::options::Options;
use super::sampling::context_exceeded;
use super::{Endpoint, Limits};

/// What is to be continued.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    Text(String),
    /// Ids of the model's vocabulary.
    Tokens(Vec<u32>),
}

/// A checked completion request.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletionRequest {
    pub prompt: Prompt,
    pub options: Options,
}

impl CompletionRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// 400 that names the field at fault.
    pub fn parse(body: &[u8], limits: &Limits) -> Result<Self, ApiError> {
        let mut options = Options::new(Endpoint::Completions, limits);
        let mut prompt = None;
        for (name, value) in parse_object(body)? {
            match name.as_ref() {
                "prompt" if value != Json::Null => prompt = Some(read_prompt(value, limits)?),
                _ => options.take(&name, value, limits)?,
            }
        }
        options.check()?;
        let prompt = prompt.ok_or_else(|| field::invalid(&"prompt", "is required"))?;
        Ok(Self { prompt, options })
    }
}

/// Reads a string, a list of token ids, or a list of one such prompt.
fn read_prompt(value: Json, limits: &Limits) -> Result<Prompt, ApiError> {
    match value {
        Json::String(text) if text.is_empty() => Err(field::invalid(
            &"prompt",
            "is empty; there is nothing to continue",
        )),
        Json::String(text) => Ok(Prompt::Text(text.into_owned())),
        Json::Array(items) => match items.first() {
            None => Err(field::invalid(
                &"prompt",
                "is empty; there is nothing to continue",
            )),
            Some(Json::String(_) | Json::Array(_)) => read_batch(items, limits),
            Some(_) => read_tokens(items, limits),
        },
        other => Err(field::expected(
            &"prompt",
            &"a string or an array of token ids",
            &other,
        )),
    }
}

fn read_batch(mut items: Vec<Json>, limits: &Limits) -> Result<Prompt, ApiError> {
    match (items.pop(), items.len()) {
        (Some(Json::Array(inner)), 0) if !matches!(inner.first(), Some(Json::Number(_))) => Err(
            field::invalid(&"prompt[0]", "must be a non-empty array of token ids"),
        ),
        (Some(only), 0) => read_prompt(only, limits),
        (_, rest) => {
            let reason = format_args!("has {} prompts; send one request for each", rest + 1);
            Err(field::invalid(&"prompt", reason).code("unsupported_parameter"))
        }
    }
}

fn read_tokens(items: Vec<Json>, limits: &Limits) -> Result<Prompt, ApiError> {
    let count = items.len();
    if count >= limits.max_model_len as usize {
        return Err(context_exceeded("prompt", count, limits.max_model_len));
    }
    field::token_ids(&"prompt", Json::Array(items), limits.vocab_size, count).map(Prompt::Tokens)
}
