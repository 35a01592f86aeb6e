//! Results: one columnar frame per step and receiver.

use serde::{Deserialize, Serialize};

use crate::column::Column;
use crate::logprobs::{Logprobs, PromptLogprobs, TokenIds};
use crate::message::Tag;
use crate::request::{Output, RequestId};

/// Why a request ended, by its number on the wire.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// End-of-sequence token, stop token or stop string.
    Stop = 0,
    /// `max_tokens` or the context length was reached.
    Length = 1,
    /// The client left.
    Abort = 2,
    /// See [`Outcome::status`] and [`Outcome::message`].
    Error = 3,
}

impl Serialize for FinishReason {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(*self as u8)
    }
}

impl<'de> Deserialize<'de> for FinishReason {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u8::deserialize(deserializer)? {
            0 => Ok(Self::Stop),
            1 => Ok(Self::Length),
            2 => Ok(Self::Abort),
            3 => Ok(Self::Error),
            other => Err(serde::de::Error::custom(format!(
                "unknown finish reason {other}"
            ))),
        }
    }
}

/// A request as the detokenizer must know it before its first token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Opened {
    pub id: RequestId,
    /// The last few prompt tokens (at most 16): decoders that look back need them.
    pub prompt_tail: Column<u32>,
    pub output: Output,
}

/// What is known of a request with its first token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct First {
    /// Row of the frame.
    pub row: u32,
    /// Prompt tokens taken from the prefix cache.
    pub cached_tokens: u32,
    /// Time between arrival and first scheduling, microseconds.
    pub queue_us: u64,
    /// Time between first scheduling and first token, microseconds.
    pub prefill_us: u64,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub reason: FinishReason,
    /// The stop token, when one ended the request; it is the row's last token.
    pub stop_token: Option<u32>,
    /// The stop string, when one ended the request.
    pub stop_string: Option<String>,
    /// HTTP status that fits an error; 0 otherwise.
    pub status: u16,
    /// Message for the client of an error; empty otherwise.
    pub message: String,
}

/// A row's request has ended; it appears in no later frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    pub row: u32,
    pub outcome: Outcome,
}

/// Scheduler to detokenizer: what one step produced.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenFrame {
    pub tag: Tag<30>,
    pub step: u64,
    /// Requests that enter with this frame, before its rows are read.
    pub opened: Vec<Opened>,
    /// One row for each request that got tokens or ended.
    pub ids: Column<u64>,
    /// Tokens of each row; 0 for a row that only ends.
    pub counts: Column<u32>,
    /// The rows' tokens, end to end.
    pub tokens: Column<u32>,
    pub first: Vec<First>,
    pub finished: Vec<Finished>,
    /// Absent unless a row's request asked ([`crate::Sampling::logprobs`]).
    pub logprobs: Option<Logprobs>,
    /// Of the rows that have their request's first token and whose request asked
    /// ([`crate::Sampling::prompt_logprobs`]).
    pub prompt_logprobs: Vec<PromptLogprobs>,
}

/// Detokenizer to one entry worker: the text of one step.
///
/// A row stands here when it has text to show or has ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TextFrame {
    pub tag: Tag<31>,
    pub step: u64,
    pub ids: Column<u64>,
    /// Tokens that a row stands for: all since the request's last row.
    pub counts: Column<u32>,
    /// End of each row's text in `text`, bytes.
    pub ends: Column<u32>,
    /// The rows' text, end to end; every row is whole characters.
    pub text: String,
    pub first: Vec<First>,
    pub finished: Vec<Finished>,
    /// The tokens that rows stand for, of requests that asked for ids ([`Output::token_ids`]) or log probabilities;
    /// absent unless one did. Concatenated over a request's rows they are all tokens that its usage counts, whether
    /// they show in the text or not.
    pub tokens: Option<TokenIds>,
    /// Log probabilities of these tokens; their rows are among those of `tokens`.
    pub logprobs: Option<Logprobs>,
    pub prompt_logprobs: Vec<PromptLogprobs>,
}
