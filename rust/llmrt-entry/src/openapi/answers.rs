//! The bodies that clients get, as schemas.
//!
//! Answers are written without these types, which hold everything that an answer may have and nothing else: tests read
//! real answers back through them.
#![allow(dead_code)]

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::scalars::TokenId;

/// The answer to a conversation.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatCompletion {
    id: String,
    #[schemars(extend("const" = "chat.completion"))]
    object: String,
    /// Seconds since 1970.
    created: u64,
    model: String,
    choices: Vec<ChatChoice>,
    usage: Usage,
    /// With `return_token_ids`.
    prompt_token_ids: Option<Vec<TokenId>>,
    /// With `prompt_logprobs`.
    prompt_logprobs: Option<PromptLogprobs>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ChatChoice {
    index: u32,
    message: AnswerMessage,
    logprobs: Option<ChatLogprobs>,
    finish_reason: FinishReason,
    stop_reason: Option<StopReason>,
    /// With `return_token_ids`.
    token_ids: Option<Vec<TokenId>>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AnswerMessage {
    #[schemars(extend("const" = "assistant"))]
    role: String,
    content: String,
    refusal: Option<()>,
}

/// One `data:` event of a streamed answer to a conversation. The stream ends with `data: [DONE]`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatCompletionChunk {
    id: String,
    #[schemars(extend("const" = "chat.completion.chunk"))]
    object: String,
    /// Seconds since 1970.
    created: u64,
    model: String,
    /// Empty in the chunk that tells the usage.
    choices: Vec<ChatChunkChoice>,
    /// `null` but in the last chunk, unless `continuous_usage_stats` was asked for.
    usage: Option<Usage>,
    /// In the first chunk, with `return_token_ids`.
    prompt_token_ids: Option<Vec<TokenId>>,
    /// In the first chunk, with `prompt_logprobs`.
    prompt_logprobs: Option<PromptLogprobs>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ChatChunkChoice {
    index: u32,
    delta: Delta,
    logprobs: Option<ChatLogprobs>,
    /// `null` in every chunk but the choice's last.
    finish_reason: Option<FinishReason>,
    stop_reason: Option<StopReason>,
    /// With `return_token_ids`.
    token_ids: Option<Vec<TokenId>>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Delta {
    /// In the choice's first chunk.
    role: Option<String>,
    content: Option<String>,
}

/// The continuation of a prompt, whole or, with another `finish_reason` of `null`, one `data:` event of it. A stream
/// ends with `data: [DONE]`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Completion {
    id: String,
    #[schemars(extend("const" = "text_completion"))]
    object: String,
    /// Seconds since 1970.
    created: u64,
    model: String,
    choices: Vec<CompletionChoice>,
    usage: Option<Usage>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CompletionChoice {
    /// Number of the prompt times `n`, plus the number among its choices.
    index: u32,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    /// `null` in every chunk of a stream but the choice's last.
    finish_reason: Option<FinishReason>,
    stop_reason: Option<StopReason>,
    /// With `return_token_ids`.
    token_ids: Option<Vec<TokenId>>,
    /// With `return_token_ids`.
    prompt_token_ids: Option<Vec<TokenId>>,
    /// With `prompt_logprobs`.
    prompt_logprobs: Option<PromptLogprobs>,
}

/// `abort`: the server ended it.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum FinishReason {
    Stop,
    Length,
    Abort,
}

/// The stop string, or the one of the `stop_token_ids`, that ended an answer.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
enum StopReason {
    Text(String),
    Token(TokenId),
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: PromptTokensDetails,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PromptTokensDetails {
    /// Prompt tokens that came from the prefix cache.
    cached_tokens: u64,
}

/// One entry for each token of the answer.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ChatLogprobs {
    content: Vec<ChatToken>,
    refusal: Option<()>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ChatToken {
    token: String,
    logprob: f64,
    /// The token's bytes; a token may be part of a character.
    bytes: Vec<u8>,
    top_logprobs: Vec<TopLogprob>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TopLogprob {
    token: String,
    logprob: f64,
    bytes: Vec<u8>,
}

/// Lists of one length, with an entry for each token. A prompt's first token has `null` for a log probability.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f64>>,
    top_logprobs: Vec<Option<BTreeMap<String, f64>>>,
    /// Where each token begins in the text, characters.
    text_offset: Vec<u64>,
}

/// For each token of the prompt a map from ids; `null` for the first.
type PromptLogprobs = Vec<Option<BTreeMap<String, PromptToken>>>;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PromptToken {
    logprob: f64,
    /// 1 for the likeliest; `null` for a token that is not among those asked for.
    rank: Option<u32>,
    decoded_token: String,
}

/// The served models.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Models {
    #[schemars(extend("const" = "list"))]
    object: String,
    data: Vec<Model>,
}

/// A served model.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Model {
    id: String,
    #[schemars(extend("const" = "model"))]
    object: String,
    created: u64,
    owned_by: String,
    root: String,
    parent: Option<()>,
    /// Longest prompt plus answer, tokens.
    max_model_len: u32,
}

/// Token ids of a text or a conversation.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tokens {
    count: u64,
    max_model_len: u32,
    tokens: Vec<TokenId>,
    token_strs: Option<Vec<String>>,
}

/// The text of token ids.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Text {
    prompt: String,
}

/// How the server is.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Status {
    status: String,
}

/// A token was generated.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Probe {
    status: String,
    /// What it took.
    seconds: f64,
}

/// The version of llmrt.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Version {
    version: String,
}

/// Any error. After the head of a stream it comes as an event of its own.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Error {
    error: Problem,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Problem {
    message: String,
    r#type: String,
    /// The field at fault.
    param: Option<String>,
    code: Option<String>,
}
