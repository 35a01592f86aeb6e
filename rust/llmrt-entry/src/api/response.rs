//! What every answer is made of, and the bodies of answers that are not streamed.

use std::borrow::Cow;

use bytes::Bytes;
use llmrt_wire::{FinishReason, Outcome, RequestId};
use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};
use serde_json::value::RawValue;

use super::Endpoint;
use super::telling::Parts;

/// What all parts of one answer repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// See [`response_id`].
    pub id: &'a str,
    /// Seconds since 1970.
    pub created: u64,
    /// Name of the model, as the client knows it.
    pub model: &'a str,
}

/// The answer's id: unique over restarts, and the request's own id is readable at its end.
pub fn response_id(endpoint: Endpoint, incarnation: u64, request: RequestId) -> String {
    let kind = match endpoint {
        Endpoint::Chat => "chatcmpl",
        Endpoint::Completions => "cmpl",
    };
    format!("{kind}-{incarnation:016x}{request}")
}

/// Tokens of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
    /// Prompt tokens taken from the prefix cache.
    pub cached_tokens: u32,
}

impl Usage {
    /// Of a response whose choices have these: a prompt that `n` choices share counts once.
    pub fn of_choices(choices: &[Self], n: usize) -> Self {
        let mut sum = Self::default();
        for (number, choice) in choices.iter().enumerate() {
            if number % n == 0 {
                sum.prompt_tokens += choice.prompt_tokens;
                sum.cached_tokens += choice.cached_tokens;
            }
            sum.completion_tokens += choice.completion_tokens;
        }
        sum
    }
}

impl Serialize for Usage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Details {
            cached_tokens: u32,
        }
        let total = u64::from(self.prompt_tokens) + u64::from(self.completion_tokens);
        let details = Details {
            cached_tokens: self.cached_tokens,
        };
        let mut usage = serializer.serialize_struct("Usage", 4)?;
        usage.serialize_field("prompt_tokens", &self.prompt_tokens)?;
        usage.serialize_field("total_tokens", &total)?;
        usage.serialize_field("completion_tokens", &self.completion_tokens)?;
        usage.serialize_field("prompt_tokens_details", &details)?;
        usage.end()
    }
}

/// What completed an answer that ended with `stop`: `null` for the end-of-sequence token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum StopReason<'a> {
    None,
    /// One of the request's `stop_token_ids`.
    Token(u32),
    /// One of the request's stop strings.
    Text(&'a str),
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finish<'a> {
    pub reason: FinishReason,
    pub stop: StopReason<'a>,
}

impl<'a> Finish<'a> {
    /// How the request with these `stop_token_ids` ended.
    pub fn new(outcome: &'a Outcome, stop_token_ids: &[u32]) -> Self {
        let asked = outcome
            .stop_token
            .filter(|token| stop_token_ids.contains(token));
        let stop = match (&outcome.stop_string, asked) {
            (Some(text), _) => StopReason::Text(text),
            (None, Some(token)) => StopReason::Token(token),
            (None, None) => StopReason::None,
        };
        Self {
            reason: outcome.reason,
            stop,
        }
    }

    /// `finish_reason` of the answer.
    pub const fn name(&self) -> &'static str {
        match self.reason {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Abort => "abort",
            FinishReason::Error => "error",
        }
    }
}

/// One whole answer.
#[derive(Clone, Copy)]
pub struct Answer<'a> {
    /// Number of the choice.
    pub index: u32,
    pub text: &'a str,
    pub finish: Finish<'a>,
    /// What is told beside it.
    pub parts: &'a Parts,
}

/// Body of an answer that is not streamed.
pub fn body(endpoint: Endpoint, envelope: &Envelope, answers: &[Answer], usage: Usage) -> Bytes {
    match endpoint {
        Endpoint::Chat => render(
            "chat.completion",
            envelope,
            answers.iter().map(ChatChoice::from).collect(),
            // A conversation is one prompt, which the first choice tells for all.
            answers.first().map(|answer| answer.parts),
            usage,
        ),
        Endpoint::Completions => render(
            "text_completion",
            envelope,
            answers.iter().map(TextChoice::from).collect(),
            None,
            usage,
        ),
    }
}

#[derive(Serialize)]
struct Body<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<C>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<&'a RawValue>,
    usage: Usage,
}

#[derive(Serialize)]
struct ChatChoice<'a> {
    index: u32,
    message: ChatMessage<'a>,
    logprobs: Option<&'a RawValue>,
    finish_reason: &'static str,
    stop_reason: StopReason<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [u32]>,
}

#[derive(Serialize)]
struct ChatMessage<'a> {
    role: &'static str,
    content: &'a str,
    refusal: Option<()>,
}

#[derive(Serialize)]
struct TextChoice<'a> {
    index: u32,
    text: Cow<'a, str>,
    logprobs: Option<&'a RawValue>,
    finish_reason: &'static str,
    stop_reason: StopReason<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<&'a RawValue>,
}

impl<'a> From<&Answer<'a>> for ChatChoice<'a> {
    fn from(answer: &Answer<'a>) -> Self {
        Self {
            index: answer.index,
            message: ChatMessage {
                role: "assistant",
                content: answer.text,
                refusal: None,
            },
            logprobs: answer.parts.logprobs.as_deref(),
            finish_reason: answer.finish.name(),
            stop_reason: answer.finish.stop,
            token_ids: answer.parts.token_ids.as_deref(),
        }
    }
}

impl<'a> From<&Answer<'a>> for TextChoice<'a> {
    fn from(answer: &Answer<'a>) -> Self {
        Self {
            index: answer.index,
            text: match answer.parts.before() {
                "" => answer.text.into(),
                before => [before, answer.text].concat().into(),
            },
            logprobs: answer.parts.logprobs.as_deref(),
            finish_reason: answer.finish.name(),
            stop_reason: answer.finish.stop,
            token_ids: answer.parts.token_ids.as_deref(),
            prompt_token_ids: answer.parts.prompt_token_ids.as_deref(),
            prompt_logprobs: answer.parts.prompt_logprobs.as_deref(),
        }
    }
}

fn render<C: Serialize>(
    object: &'static str,
    envelope: &Envelope,
    choices: Vec<C>,
    prompt: Option<&Parts>,
    usage: Usage,
) -> Bytes {
    let Envelope { id, created, model } = *envelope;
    to_bytes(&Body {
        id,
        object,
        created,
        model,
        choices,
        prompt_token_ids: prompt.and_then(|parts| parts.prompt_token_ids.as_deref()),
        prompt_logprobs: prompt.and_then(|parts| parts.prompt_logprobs.as_deref()),
        usage,
    })
}

/// JSON of plain data, which has no way to fail.
pub(super) fn to_bytes(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).unwrap_or_default().into()
}
