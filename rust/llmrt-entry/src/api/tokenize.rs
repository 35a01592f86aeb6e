//! `POST /tokenize` and `/detokenize`, in vLLM's form.

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;

use super::chat::read_messages;
use super::error::ApiError;
use super::field;
use super::json::{Json, MAX_VALUES, parse_object};
use super::prompting::Prompting;
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
    pub prompting: Prompting,
    /// Tell each token as the vocabulary spells it, too.
    pub return_token_strs: bool,
}

impl TokenizeRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// 400 that names the field at fault.
    pub fn parse(body: &[u8], limits: &Limits) -> Result<Self, ApiError> {
        let members = parse_object(body)?;
        let is_chat = members
            .iter()
            .any(|(name, value)| name == "messages" && *value != Json::Null);
        let endpoint = if is_chat {
            Endpoint::Chat
        } else {
            Endpoint::Completions
        };
        let mut prompting = Prompting::new(endpoint);
        let (mut model, mut prompt, mut messages) = (None, None, None);
        let mut return_token_strs = false;
        for (name, value) in members {
            match (name.as_ref(), value) {
                (_, Json::Null) => {}
                ("model", value) => model = Some(field::string(&name, value)?.into_owned()),
                ("prompt", value) => prompt = Some(field::string(&name, value)?.into_owned()),
                ("messages", value) => messages = Some(read_messages(value)?),
                ("return_token_strs", value) => return_token_strs = field::boolean(&name, &value)?,
                (_, value) => {
                    if let Some(value) = prompting.take(endpoint, &name, value, limits)? {
                        rules::check(endpoint, &name, &value)?;
                    }
                }
            }
        }
        prompting.check()?;
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
        Ok(Self {
            model,
            input,
            prompting,
            return_token_strs,
        })
    }
}

/// Body of the answer to a [`TokenizeRequest`]; `spelled` has the vocabulary's spelling of each token, if asked for.
pub fn tokenize_body(tokens: &[u32], spelled: Option<&[String]>, max_model_len: u32) -> Bytes {
    #[derive(Serialize)]
    struct Body<'a> {
        count: usize,
        max_model_len: u32,
        tokens: &'a [u32],
        token_strs: Option<&'a [String]>,
    }
    to_bytes(&Body {
        count: tokens.len(),
        max_model_len,
        tokens,
        token_strs: spelled,
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

    fn limits() -> Limits {
        Limits {
            max_model_len: 8,
            vocab_size: 10,
            max_choices: 1,
            priorities: false,
            defaults: Default::default(),
        }
    }

    #[test]
    fn texts_and_conversations() {
        let parse = |body: &str| TokenizeRequest::parse(body.as_bytes(), &limits()).unwrap();
        let text = parse(r#"{"prompt":"","model":"m"}"#);
        assert_eq!(text.input, Input::Text(String::new()));
        assert!(text.prompting.add_special_tokens);
        let chat = parse(
            r#"{"messages":[{"role":"user","content":"hi"}],"add_generation_prompt":false,
                "chat_template_kwargs":{"a":1},"return_token_strs":true}"#,
        );
        assert!(matches!(chat.input, Input::Messages(messages) if messages.len() == 1));
        let prompting = chat.prompting;
        assert!(!prompting.add_special_tokens && !prompting.add_generation_prompt());
        assert!(prompting.kwargs["a"] == 1 && chat.return_token_strs);
    }

    #[test]
    fn refusals() {
        let bodies = [
            r"{}",
            r#"{"prompt":["a"]}"#,
            r#"{"prompt":"a","messages":[{"role":"user","content":"b"}]}"#,
            r#"{"prompt":"a","add_special_tokens":1}"#,
            r#"{"prompt":"a","return_token_strs":1}"#,
            r#"{"prompt":"a","continue_final_message":true}"#,
            r#"{"messages":[],"model":"m"}"#,
            r#"{"messages":[{"role":"user","content":"b"}],"chat_template":"x"}"#,
        ];
        for body in bodies {
            let error = TokenizeRequest::parse(body.as_bytes(), &limits()).unwrap_err();
            assert_eq!(error.status(), 400, "{body}");
        }
    }

    #[test]
    fn ids_must_be_of_the_vocabulary() {
        let parse = |body: &str| DetokenizeRequest::parse(body.as_bytes(), &limits());
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
        assert_eq!(tokenize_body(&[1, 2], None, 8), expected);
        let spelled = tokenize_body(&[1], Some(&["\u{120}a".into()]), 8);
        assert!(spelled.ends_with("\"token_strs\":[\"\u{120}a\"]}".as_bytes()));
        assert_eq!(detokenize_body("a\"b"), r#"{"prompt":"a\"b"}"#);
    }
}
