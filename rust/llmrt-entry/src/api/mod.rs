//! The OpenAI surface: what clients may send and what they get back. Pure code, no I/O.
//!
//! A generation request goes through here twice: its body becomes a [`ChatRequest`] or a
//! [`CompletionRequest`], all checked but for the length of the prompt; once the prompt is
//! tokens, [`Generation::fit`] makes of it what the core is sent. The answer is written by
//! [`ChunkWriter`] for streams and by [`response`] otherwise.

pub mod chat;
pub mod completions;
pub mod details;
pub mod error;
mod field;
pub mod json;
pub mod lists;
mod logprobs;
pub mod models;
mod options;
pub mod placing;
pub mod prompting;
pub mod response;
pub mod rules;
pub mod sampling;
pub mod stream;
mod telling;
pub mod tokenize;
mod told;

pub use chat::ChatRequest;
pub use completions::{CompletionRequest, Prompt};
pub use details::{Details, seed_of};
pub use error::{ApiError, ErrorKind, quote};
pub use logprobs::Names;
pub use models::Models;
pub use options::{Options, Streaming};
pub use placing::Placing;
pub use prompting::Prompting;
pub use response::{Envelope, Finish, Usage};
pub use sampling::{Defaults, Generation, check_sampling, text_exceeds_context};
pub use stream::{Choice, ChunkWriter};
pub use telling::{Parts, Prompted, Telling};
pub use told::{Row, Told};

/// The two ways to ask for text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `POST /v1/chat/completions`.
    Chat,
    /// `POST /v1/completions`.
    Completions,
}

/// What a request is checked against: sizes of the model, and its own preferences.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Longest prompt plus answer, tokens.
    pub max_model_len: u32,
    /// Token ids are below this.
    pub vocab_size: u32,
    /// Most answers to one request: `n` for each of its prompts.
    pub max_choices: u32,
    /// Whether requests run in the order of their priorities.
    pub priorities: bool,
    /// Values of fields that a request leaves out.
    pub defaults: Defaults,
}

impl Endpoint {
    /// The field that carries the prompt.
    pub const fn prompt_field(self) -> &'static str {
        match self {
            Self::Chat => "messages",
            Self::Completions => "prompt",
        }
    }
}

#[cfg(test)]
mod tests;
