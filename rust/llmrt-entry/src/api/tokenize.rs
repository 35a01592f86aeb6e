//! `POST /tokenize` and `/detokenize`, in vLLM's form.

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;

use super::chat::read_messages;
use super::error::ApiError;
use super::field;
use super::json::{Json, MAX_VALUES, parse_object};
use super::response::to_bytes;
use super::{Endpoint, Limits, rules};

/// What is to be tokenized.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    Text(String),
    /// A conversation; see [`super::ChatRequest::messages`].
    Messages(Vec<Value>),
}

/// A checked request for token ids.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenizeRequest {
    pub model: Option<String>,
    pub input: Input,
    /// Add what the tokenizer puts around a text; templates write their own.
    pub add_special_tokens: bool,
    /// End the rendered conversation with the head of an answer.
    pub add_generation_prompt: bool,
}

impl TokenizeRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// 400 that names the field at fault.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let (mut model, mut prompt, mut messages) = (None, None, None);
        let (mut special, mut generation) = (None, true);
        for (name, value) in parse_object(body)? {
            match (name.as_ref(), value) {
                (_, Json::Null) => {}
                ("model", value) => model = Some(field::string(&name, value)?.into_owned()),
                ("prompt", value) => prompt = Some(field::string(&name, value)?.into_owned()),
                ("messages", value) => messages = Some(read_messages(value)?),
                ("add_special_tokens", value) => special = Some(field::boolean(&name, &value)?),
                ("add_generation_prompt", value) => generation = field::boolean(&name, &value)?,
                ("return_token_strs", value) => {
                    if field::boolean(&name, &value)? {
                        let reason = "is not supported: leave it out or send false";
                        return Err(field::invalid(&name, reason).code("unsupported_parameter"));
                    }
                }
                (_, value) => drop(rules::check(Endpoint::Chat, &name, &value)?),
            }
        }
        let input = match (prompt, messages) {
            (Some(text), None) => Input::Text(text),
            (None, Some(messages)) => Input::Messages(messages),
            (None, None) => return Err(field::invalid(&"prompt", "or `messages` is required")),
            (Some(_), Some(_)) => {
                return Err(field::invalid(
                    &"prompt",
                    "excludes `messages`: send one of them",
                ));
            }
        };
        let add_special_tokens = special.unwrap_or(matches!(input, Input::Text(_)));
        Ok(Self {
            model,
            input,
            add_special_tokens,
            add_generation_prompt: generation,
        })
    }
}

/// Body of the answer to a [`TokenizeRequest`].
pub fn tokenize_body(tokens: &[u32], max_model_len: u32) -> Bytes {
    #[derive(Serialize)]
    struct Body<'a> {
        count: usize,
        max_model_len: u32,
        tokens: &'a [u32],
        token_strs: Option<()>,
    }
    to_bytes(&Body {
        count: tokens.len(),
        max_model_len,
        tokens,
        token_strs: None,
    })
}

/// A checked request for the text of token ids.
#[derive(Clone, Debug, PartialEq)]
pub struct DetokenizeRequest {
    pub model: Option<String>,
    /// Ids of the vocabulary.
    pub tokens: Vec<u32>,
}

impl DetokenizeRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// 400 that names the field at fault.
    pub fn parse(body: &[u8], limits: &Limits) -> Result<Self, ApiError> {
        let (mut model, mut tokens) = (None, None);
        for (name, value) in parse_object(body)? {
            match (name.as_ref(), value) {
                (_, Json::Null) => {}
                ("model", value) => model = Some(field::string(&name, value)?.into_owned()),
                ("tokens", value) => {
                    tokens = Some(field::token_ids(
                        &name,
                        value,
                        limits.vocab_size,
                        MAX_VALUES,
                    )?);
                }
                _ => {}
            }
        }
        let tokens = tokens.ok_or_else(|| field::invalid(&"tokens", "is required"))?;
        Ok(Self { model, tokens })
    }
}

/// Body of the answer to a [`DetokenizeRequest`].
pub fn detokenize_body(text: &str) -> Bytes {
    #[derive(Serialize)]
    struct Body<'a> {
        prompt: &'a str,
    }
    to_bytes(&Body { prompt: text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_conversations() {
        let text = TokenizeRequest::parse(br#"{"prompt":"","model":"m"}"#).unwrap();
        assert_eq!(
            (text.input, text.add_special_tokens),
            (Input::Text(String::new()), true)
        );
        let chat =
            br#"{"messages":[{"role":"user","content":"hi"}],"add_generation_prompt":false}"#;
        let chat = TokenizeRequest::parse(chat).unwrap();
        assert!(matches!(chat.input, Input::Messages(messages) if messages.len() == 1));
        assert!(!chat.add_special_tokens && !chat.add_generation_prompt);
    }

    #[test]
    fn refusals() {
        let bodies = [
            r"{}",
            r#"{"prompt":["a"]}"#,
            r#"{"prompt":"a","messages":[{"role":"user","content":"b"}]}"#,
            r#"{"prompt":"a","add_special_tokens":1}"#,
            r#"{"prompt":"a","return_token_strs":true}"#,
            r#"{"messages":[],"model":"m"}"#,
            r#"{"messages":[{"role":"user","content":"b"}],"chat_template":"x"}"#,
        ];
        for body in bodies {
            assert_eq!(
                TokenizeRequest::parse(body.as_bytes())
                    .unwrap_err()
                    .status(),
                400,
                "{body}"
            );
        }
    }

    #[test]
    fn ids_must_be_of_the_vocabulary() {
        let limits = Limits {
            max_model_len: 8,
            vocab_size: 10,
            defaults: Default::default(),
        };
        let parse = |body: &str| DetokenizeRequest::parse(body.as_bytes(), &limits);
        assert_eq!(parse(r#"{"tokens":[0,9]}"#).unwrap().tokens, [0, 9]);
        for bad in [
            r#"{"tokens":[10]}"#,
            r#"{"tokens":[-1]}"#,
            r#"{"tokens":[1.5]}"#,
            r#"{"tokens":"1"}"#,
            "{}",
        ] {
            assert_eq!(parse(bad).unwrap_err().status(), 400, "{bad}");
        }
    }

    #[test]
    fn bodies() {
        let expected = r#"{"count":2,"max_model_len":8,"tokens":[1,2],"token_strs":null}"#;
        assert_eq!(tokenize_body(&[1, 2], 8), expected);
        assert_eq!(detokenize_body("a\"b"), r#"{"prompt":"a\"b"}"#);
    }
}
