//! Tests of the surface as a whole; those of one file stand in it.

mod answers;
mod details;
mod json;
mod prompts;
mod properties;
mod requests;
mod telling;

use serde_json::{Value, json};

use super::error::ApiError;
use super::{ChatRequest, CompletionRequest, Defaults, Limits};

/// A small model, so that its limits are easy to cross.
fn limits() -> Limits {
    Limits {
        max_model_len: 100,
        vocab_size: 50,
        max_choices: 128,
        priorities: true,
        defaults: Defaults::default(),
    }
}

/// The `error` member of the body that a client would see.
fn rendered(error: &ApiError) -> Value {
    let body: Value = serde_json::from_slice(&error.body()).unwrap();
    body["error"].clone()
}

/// A chat request that is fine but for what `extra` adds or replaces.
fn chat(extra: Value) -> Result<ChatRequest, ApiError> {
    let base = json!({"messages": [{"role": "user", "content": "hi"}]});
    ChatRequest::parse(&with(base, &extra), &limits())
}

/// A completion request that is fine but for what `extra` adds or replaces.
fn completion(extra: Value) -> Result<CompletionRequest, ApiError> {
    CompletionRequest::parse(&with(json!({"prompt": "hi"}), &extra), &limits())
}

fn with(mut body: Value, extra: &Value) -> Vec<u8> {
    for (name, value) in extra.as_object().unwrap() {
        body[name] = value.clone();
    }
    serde_json::to_vec(&body).unwrap()
}
