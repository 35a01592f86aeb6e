//! The bodies that clients send, as schemas.
//!
//! These types are read by nobody: requests are parsed field by field in [`crate::api`], for exact messages and without
//! copies. What is said here about names, types and ranges is what the parser takes; tests feed it with both sides of
//! every schema. A field that may be left out is an `Option`, and may be `null` then.
#![allow(dead_code)]

use std::collections::BTreeMap;

use schemars::JsonSchema;

use super::scalars::{Count, TokenId};
use crate::api::chat::{MAX_MESSAGES, MAX_PARTS};
use crate::api::lists::{MAX_BAD_WORDS, MAX_LOGIT_BIAS, MAX_STOP};
use crate::api::placing::MAX_DEADLINE_MS;
use crate::api::prompting::MAX_KWARGS;
use crate::api::sampling::MAX_STOP_TOKEN_IDS;

/// A conversation to be answered.
#[derive(JsonSchema)]
pub struct ChatCompletionRequest {
    /// The conversation so far.
    #[schemars(length(min = 1, max = MAX_MESSAGES))]
    messages: Vec<Message>,
    /// Tell the log probability of every token.
    logprobs: Option<bool>,
    /// Tell so many of the likeliest tokens beside each; needs `logprobs`.
    #[schemars(range(min = 0, max = 20))]
    top_logprobs: Option<u32>,
    /// End the prompt with the head of an answer; `true` unless `continue_final_message` is set.
    add_generation_prompt: Option<bool>,
    /// Go on with the last message instead of answering it.
    continue_final_message: Option<bool>,
    /// Further variables of the chat template.
    #[schemars(extend("maxProperties" = MAX_KWARGS))]
    chat_template_kwargs: Option<serde_json::Map<String, serde_json::Value>>,
    #[schemars(flatten)]
    generation: Generation,
}

/// A text to be continued.
#[derive(JsonSchema)]
pub struct CompletionRequest {
    /// One prompt, or several, each answered by `n` choices.
    prompt: Prompts,
    /// Tell the log probability of every token, and those of so many of the likeliest ones.
    logprobs: Option<Logprobs>,
    /// Begin each choice with its prompt.
    echo: Option<bool>,
    #[schemars(flatten)]
    generation: Generation,
}

/// What chats and completions share.
#[derive(JsonSchema)]
struct Generation {
    /// A name of `GET /v1/models`; the served model when left out.
    model: Option<String>,
    /// Answer with Server-Sent Events as the text grows.
    stream: Option<bool>,
    /// Only with `stream`.
    stream_options: Option<StreamOptions>,
    /// Choices for each prompt; more than 1 needs a temperature above 0.
    n: Option<Count>,
    /// Equal to `n`, if sent at all.
    best_of: Option<Count>,
    /// 0 always takes the likeliest token.
    #[schemars(range(min = 0, max = 2))]
    temperature: Option<f64>,
    /// Sample among the likeliest tokens that together have this probability.
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
    top_p: Option<f64>,
    /// Sample among so many of the likeliest tokens; 0 and -1 mean all.
    #[schemars(range(min = -1))]
    top_k: Option<i64>,
    /// Sample among tokens of at least this part of the likeliest one's probability.
    #[schemars(range(min = 0, max = 1))]
    min_p: Option<f64>,
    /// The same seed gives the same answer.
    #[schemars(range(min = i64::MIN, max = i64::MAX))]
    seed: Option<i64>,
    /// Most tokens of an answer; cut to the room that the prompt leaves. 0 only with `echo`.
    #[schemars(range(min = 0))]
    max_tokens: Option<i64>,
    /// The newer name of `max_tokens`; both only if equal.
    #[schemars(range(min = 0))]
    max_completion_tokens: Option<i64>,
    /// Neither end of sequence nor stop before so many tokens.
    #[schemars(range(min = 0))]
    min_tokens: Option<i64>,
    /// Go on behind an end-of-sequence token.
    ignore_eos: Option<bool>,
    /// Strings that end the answer.
    stop: Option<Stop>,
    /// Tokens that end the answer.
    #[schemars(length(max = MAX_STOP_TOKEN_IDS))]
    stop_token_ids: Option<Vec<TokenId>>,
    /// Keep the stop string, or the stop token's text, in the answer.
    include_stop_str_in_output: Option<bool>,
    /// Leave special tokens out of the text; `true` when left out.
    skip_special_tokens: Option<bool>,
    /// Subtracted from the logit of every token that the answer has.
    #[schemars(range(min = -2, max = 2))]
    presence_penalty: Option<f64>,
    /// Subtracted from a token's logit once for each time that the answer has it.
    #[schemars(range(min = -2, max = 2))]
    frequency_penalty: Option<f64>,
    /// Divides the logits of tokens that prompt or answer have.
    #[schemars(range(min = 1e-6, max = 1e6))]
    repetition_penalty: Option<f64>,
    /// Added to logits, by token id.
    #[schemars(extend("maxProperties" = MAX_LOGIT_BIAS, "propertyNames" = {"pattern": "^(0|[1-9][0-9]*)$"}))]
    logit_bias: Option<BTreeMap<String, Bias>>,
    /// No other tokens are sampled.
    #[schemars(length(min = 1))]
    allowed_token_ids: Option<Vec<TokenId>>,
    /// Words that the answer does not have.
    #[schemars(length(max = MAX_BAD_WORDS), inner(length(min = 1)))]
    bad_words: Option<Vec<String>>,
    /// Tell the prompt's log probabilities, and those of so many of the likeliest tokens beside each.
    #[schemars(range(min = 0, max = 20))]
    prompt_logprobs: Option<u32>,
    /// Tell the ids of the prompt's and the answer's tokens.
    return_token_ids: Option<bool>,
    /// Name tokens in `logprobs` by `token_id:ID` instead of their text.
    return_tokens_as_token_ids: Option<bool>,
    /// Add what the tokenizer puts around a text: `true` for completions, `false` for chats when left out.
    add_special_tokens: Option<bool>,
    /// Keep so many of the prompt's last tokens; -1 keeps as many as leave room for the answer.
    #[schemars(range(min = -1), extend("not" = {"const": 0}))]
    truncate_prompt_tokens: Option<i64>,
    /// Lower runs first under the `priority` policy.
    priority: Option<i32>,
    /// Prompts share cached prefixes only with prompts of the same salt.
    cache_salt: Option<String>,
    /// Milliseconds from the request's arrival until it ends with 408 where its answer is not whole.
    #[schemars(range(min = 1, max = MAX_DEADLINE_MS))]
    deadline_ms: Option<i64>,
}

#[derive(JsonSchema)]
struct StreamOptions {
    /// A last chunk tells the usage.
    include_usage: Option<bool>,
    /// With `include_usage`: every chunk tells the usage so far.
    continuous_usage_stats: Option<bool>,
    /// Without effect.
    include_obfuscation: Option<bool>,
}

/// A message; members beyond these are handed to the chat template.
#[derive(JsonSchema)]
struct Message {
    role: Role,
    /// May be left out of an assistant's message only.
    content: Option<Content>,
    name: Option<String>,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
enum Role {
    System,
    Developer,
    User,
    Assistant,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
enum Content {
    Text(String),
    Parts(#[schemars(length(max = MAX_PARTS))] Vec<TextPart>),
}

#[derive(JsonSchema)]
struct TextPart {
    r#type: TextType,
    text: String,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
enum TextType {
    Text,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
enum Prompts {
    Text(#[schemars(length(min = 1))] String),
    Tokens(#[schemars(length(min = 1))] Vec<TokenId>),
    Texts(#[schemars(length(min = 1), inner(length(min = 1)))] Vec<String>),
    TokenLists(#[schemars(length(min = 1), inner(length(min = 1)))] Vec<Vec<TokenId>>),
}

#[derive(JsonSchema)]
#[schemars(untagged)]
enum Logprobs {
    Top(#[schemars(range(min = 0, max = 20))] u32),
    Off(#[schemars(extend("const" = false))] bool),
}

#[derive(JsonSchema)]
#[schemars(untagged)]
enum Stop {
    One(#[schemars(length(min = 1))] String),
    Some(#[schemars(length(max = MAX_STOP), inner(length(min = 1)))] Vec<String>),
}

#[derive(JsonSchema)]
struct Bias(#[schemars(range(min = -100, max = 100))] f64);

/// A text or a conversation to be tokenized: one of `prompt` and `messages`.
#[derive(JsonSchema)]
pub struct TokenizeRequest {
    model: Option<String>,
    prompt: Option<String>,
    #[schemars(length(min = 1, max = MAX_MESSAGES))]
    messages: Option<Vec<Message>>,
    /// `true` for a prompt, `false` for messages when left out.
    add_special_tokens: Option<bool>,
    /// Tell each token as the vocabulary spells it, too.
    return_token_strs: Option<bool>,
}

/// Token ids whose text is asked for.
#[derive(JsonSchema)]
pub struct DetokenizeRequest {
    model: Option<String>,
    tokens: Vec<TokenId>,
}
