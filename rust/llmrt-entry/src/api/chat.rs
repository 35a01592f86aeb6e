//! `POST /v1/chat/completions`.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::error::{ApiError, quote};
use super::field;
use super::json::{Json, Object, parse_object};
use super::options::Options;
use super::{Endpoint, Limits};

/// Most messages of a conversation.
pub const MAX_MESSAGES: usize = 4096;
/// Most parts of a message's content.
pub const MAX_PARTS: usize = 1024;

/// A checked chat request.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatRequest {
    /// The conversation as a chat template sees it: objects with `role`, `content` (a string) and
    /// whatever else the client sent, without members that are `null`.
    pub messages: Vec<Value>,
    pub options: Options,
}

impl ChatRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// 400 that names the field at fault.
    pub fn parse(body: &[u8], limits: &Limits) -> Result<Self, ApiError> {
        let mut options = Options::new(Endpoint::Chat, limits);
        let mut messages = None;
        for (name, value) in parse_object(body)? {
            match name.as_ref() {
                "messages" if value != Json::Null => messages = Some(read_messages(value)?),
                _ => options.take(&name, value, limits)?,
            }
        }
        options.check()?;
        let messages = messages.ok_or_else(|| field::invalid(&"messages", "is required"))?;
        Ok(Self { messages, options })
    }
}

/// Reads and checks a conversation.
///
/// # Errors
/// 400 that names the message at fault.
pub fn read_messages(value: Json) -> Result<Vec<Value>, ApiError> {
    let items = field::array(&"messages", value, MAX_MESSAGES)?;
    if items.is_empty() {
        return Err(field::invalid(
            &"messages",
            "is empty; at least one message is needed",
        ));
    }
    items
        .into_iter()
        .enumerate()
        .map(|(index, item)| read_message(index, item))
        .collect()
}

fn read_message(index: usize, item: Json) -> Result<Value, ApiError> {
    let path = format!("messages[{index}]");
    let members = field::object(&path, item)?;
    let role = role(&path, &members)?;
    let mut message = Map::with_capacity(members.len());
    message.insert("role".into(), Value::from(role));
    message.insert("content".into(), Value::from(""));
    let mut has_content = role == "assistant";
    for (name, value) in members {
        match (name.as_ref(), value) {
            ("role", _) => {}
            ("content", Json::Null) if role == "assistant" => {}
            ("content", value) => {
                has_content = true;
                message["content"] = Value::from(content(&format!("{path}.content"), value)?);
            }
            (_, Json::Null) => {}
            ("tool_calls", Json::Array(calls)) if calls.is_empty() => {}
            ("tool_calls" | "function_call" | "audio", _) => {
                return Err(unsupported(
                    &format!("{path}.{name}"),
                    "is not supported: leave it out",
                ));
            }
            ("name", value) => {
                let text = field::string(&format!("{path}.name"), value)?.into_owned();
                message.insert("name".into(), Value::from(text));
            }
            (_, value) => drop(message.insert(name.into_owned(), value.into_value())),
        }
    }
    if !has_content {
        return Err(field::invalid(&format!("{path}.content"), "is required"));
    }
    Ok(Value::Object(message))
}

fn role(path: &str, members: &Object) -> Result<&'static str, ApiError> {
    const ROLES: [&str; 4] = ["system", "developer", "user", "assistant"];
    let path = format!("{path}.role");
    let given = match members.iter().find(|(name, _)| name == "role") {
        Some((_, Json::String(given))) => given,
        Some((_, other)) => return Err(field::expected(&path, &"a string", other)),
        None => return Err(field::invalid(&path, "is required")),
    };
    if let Some(role) = ROLES.into_iter().find(|role| role == given) {
        return Ok(role);
    }
    if given == "tool" || given == "function" {
        return Err(unsupported(
            &path,
            "asks for tool calling, which is not supported",
        ));
    }
    let reason = format_args!(
        "is {}; it must be one of {}",
        quote(given),
        ROLES.join(", ")
    );
    Err(field::invalid(&path, reason))
}

/// Text of a message: a string, or text parts joined by line breaks.
fn content<'a>(path: &str, value: Json<'a>) -> Result<Cow<'a, str>, ApiError> {
    let parts = match value {
        Json::String(text) => return Ok(text),
        Json::Array(_) => field::array(&path, value, MAX_PARTS)?,
        other => {
            return Err(field::expected(
                &path,
                &"a string or an array of parts",
                &other,
            ));
        }
    };
    if parts.is_empty() {
        return Err(field::invalid(&path, "has no parts"));
    }
    let texts = parts
        .into_iter()
        .enumerate()
        .map(|(index, part)| part_text(&format!("{path}[{index}]"), part));
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n").into())
}

fn part_text<'a>(path: &str, part: Json<'a>) -> Result<Cow<'a, str>, ApiError> {
    let (mut kind, mut text) = (None, None);
    for (name, value) in field::object(&path, part)? {
        match name.as_ref() {
            "type" => kind = Some(field::string(&format!("{path}.type"), value)?),
            "text" => text = Some(field::string(&format!("{path}.text"), value)?),
            _ => {}
        }
    }
    match kind.as_deref() {
        Some("text") => text.ok_or_else(|| field::invalid(&format!("{path}.text"), "is required")),
        Some(kind) => {
            let reason = format_args!("is {}; only text parts are supported", quote(kind));
            Err(unsupported(&format!("{path}.type"), reason))
        }
        None => Err(field::invalid(&format!("{path}.type"), "is required")),
    }
}

fn unsupported(path: &str, reason: impl std::fmt::Display) -> ApiError {
    field::invalid(&path, reason).code("unsupported_parameter")
}
