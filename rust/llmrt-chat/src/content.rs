//! Turns request messages into the values a template sees.
//!
//! As `transformers` does, keys that are null are dropped and reasoning text is known under both of its names.
//! `content` is text or a list of parts; a template may take either form or both, see [`ContentFormat`].

use minijinja::Value;
use serde_json::Value as Json;

use crate::error::ChatError;

/// Nesting of the messages; deeper JSON is refused before it is walked.
const MAX_DEPTH: usize = 64;

/// Joins the text parts of a message for a template that takes only text.
const PART_SEPARATOR: &str = "\n";

/// Which forms of `content` a template takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentFormat {
    /// Text only: lists of parts are joined with newlines.
    Text,
    /// Lists of parts only: text is wrapped in one part.
    Parts,
    /// Both: content is handed on as it came.
    Either,
}

/// Messages ready for a template, and what they cost to render.
#[derive(Debug)]
pub(crate) struct Conversation {
    pub messages: Value,
    /// JSON values in the messages.
    pub values: u64,
    /// Bytes of text in the messages.
    pub bytes: u64,
}

/// Checks and converts `messages`; `tag` is appended to the text of the last one.
pub(crate) fn convert(
    messages: &Json,
    format: ContentFormat,
    tag: Option<&str>,
) -> Result<Conversation, ChatError> {
    let list = messages
        .as_array()
        .ok_or_else(|| invalid("messages must be a list"))?;
    if list.is_empty() {
        return Err(invalid("messages must not be empty"));
    }
    let mut converter = Converter {
        format,
        values: 0,
        bytes: 0,
    };
    let mut converted = Vec::with_capacity(list.len());
    for (index, message) in list.iter().enumerate() {
        let tag = tag.filter(|_| index + 1 == list.len());
        converted.push(converter.message(index, message, tag)?);
    }
    Ok(Conversation {
        messages: Value::from(converted),
        values: converter.values,
        bytes: converter.bytes,
    })
}

/// The text that a continued conversation ends with: that of the last message, its last part if it is a list.
pub(crate) fn final_text(messages: &Json) -> Result<&str, ChatError> {
    let content = messages
        .as_array()
        .and_then(|list| list.last())
        .and_then(|message| message.get("content"));
    let text = match content {
        Some(Json::String(text)) => Some(text.as_str()),
        Some(Json::Array(parts)) => parts
            .iter()
            .rev()
            .find_map(|part| part.get("text")?.as_str()),
        _ => None,
    };
    text.ok_or_else(|| invalid("continue_final_message needs a last message with text content"))
}

struct Converter {
    format: ContentFormat,
    values: u64,
    bytes: u64,
}

impl Converter {
    fn message(
        &mut self,
        index: usize,
        message: &Json,
        tag: Option<&str>,
    ) -> Result<Value, ChatError> {
        let fields = message
            .as_object()
            .ok_or_else(|| invalid(format!("messages[{index}] must be an object")))?;
        if !fields.get("role").is_some_and(Json::is_string) {
            return Err(invalid(format!("messages[{index}].role must be a string")));
        }
        let reasoning = ["reasoning_content", "thinking", "reasoning"]
            .into_iter()
            .find_map(|name| fields.get(name).filter(|value| !value.is_null()));
        let mut pairs: Vec<(Value, Value)> = Vec::with_capacity(fields.len() + 2);
        if let Some(reasoning) = reasoning {
            let reasoning = self.value(reasoning, 0)?;
            pairs.push((Value::from("thinking"), reasoning.clone()));
            pairs.push((Value::from("reasoning_content"), reasoning));
        }
        for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            let value = match name.as_str() {
                "content" => self.content(index, value, tag)?,
                "reasoning_content" => continue,
                _ => self.value(value, 0)?,
            };
            pairs.push((Value::from(name.as_str()), value));
        }
        Ok(pairs.into_iter().collect())
    }

    fn content(
        &mut self,
        index: usize,
        content: &Json,
        tag: Option<&str>,
    ) -> Result<Value, ChatError> {
        let tag = tag.unwrap_or_default();
        match content {
            Json::String(text) => Ok(match self.format {
                ContentFormat::Parts => Value::from(vec![self.part(text, tag)]),
                ContentFormat::Text | ContentFormat::Either => self.text(text, tag),
            }),
            Json::Array(parts) => {
                let texts = parts
                    .iter()
                    .map(|part| part_text(index, part))
                    .collect::<Result<Vec<_>, _>>()?;
                Ok(match self.format {
                    ContentFormat::Text => self.text(&texts.join(PART_SEPARATOR), tag),
                    ContentFormat::Parts | ContentFormat::Either => {
                        let last = texts.len().saturating_sub(1);
                        let tag_of = |i| if i == last { tag } else { "" };
                        texts
                            .iter()
                            .enumerate()
                            .map(|(i, text)| self.part(text, tag_of(i)))
                            .collect()
                    }
                })
            }
            _ => Err(invalid(format!(
                "messages[{index}].content must be a string or a list of parts"
            ))),
        }
    }

    fn text(&mut self, text: &str, tag: &str) -> Value {
        self.values += 1;
        self.bytes += text.len() as u64;
        if tag.is_empty() {
            Value::from(text)
        } else {
            Value::from(format!("{text}{tag}"))
        }
    }

    fn part(&mut self, text: &str, tag: &str) -> Value {
        let text = self.text(text, tag);
        [
            (Value::from("type"), Value::from("text")),
            (Value::from("text"), text),
        ]
        .into_iter()
        .collect()
    }

    fn value(&mut self, json: &Json, depth: usize) -> Result<Value, ChatError> {
        if depth > MAX_DEPTH {
            return Err(invalid(format!(
                "messages are nested more than {MAX_DEPTH} levels deep"
            )));
        }
        self.values += 1;
        Ok(match json {
            Json::String(text) => {
                self.bytes += text.len() as u64;
                Value::from(text.as_str())
            }
            Json::Array(items) => Value::from(
                items
                    .iter()
                    .map(|item| self.value(item, depth + 1))
                    .collect::<Result<Vec<_>, _>>()?,
            ),
            Json::Object(fields) => fields
                .iter()
                .map(|(name, value)| {
                    Ok((Value::from(name.as_str()), self.value(value, depth + 1)?))
                })
                .collect::<Result<Vec<(Value, Value)>, ChatError>>()?
                .into_iter()
                .collect(),
            scalar => Value::from_serialize(scalar),
        })
    }
}

/// Converts a template variable from the request.
pub(crate) fn variable(json: &Json) -> Result<Value, ChatError> {
    Converter {
        format: ContentFormat::Either,
        values: 0,
        bytes: 0,
    }
    .value(json, 0)
}

fn part_text(index: usize, part: &Json) -> Result<&str, ChatError> {
    match part.get("type").and_then(Json::as_str) {
        Some("text") => part.get("text").and_then(Json::as_str).ok_or_else(|| {
            invalid(format!(
                "messages[{index}].content: a text part needs a string 'text'"
            ))
        }),
        // Capped, because the answer repeats it.
        Some(kind) => Err(ChatError::Unsupported {
            index,
            kind: kind.chars().take(64).collect(),
        }),
        None => Err(invalid(format!(
            "messages[{index}].content: every part needs a string 'type'"
        ))),
    }
}

fn invalid(message: impl Into<String>) -> ChatError {
    ChatError::Invalid(message.into())
}
