//! How a prompt becomes tokens.

use serde_json::{Map, Value};

use super::error::{ApiError, quote};
use super::field;
use super::json::Json;
use super::{Endpoint, Limits};

/// Most members of `chat_template_kwargs`.
pub const MAX_KWARGS: usize = 64;
/// Most values in `chat_template_kwargs`, counted through all levels.
pub const MAX_KWARG_VALUES: usize = 1024;
/// Most bytes of text in `chat_template_kwargs`.
pub const MAX_KWARG_BYTES: usize = 64 << 10;

/// Names that a template variable of a request cannot have: they are set from other fields, or would bring a template.
const RESERVED: [&str; 7] = [
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "tokenize",
];

/// How much of a prompt stays: its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    All,
    /// As many tokens as leave room for the answer.
    Room,
    /// So many tokens at most.
    Last(u32),
}

/// The fields about the way from a prompt to its tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompting {
    /// Add what the tokenizer puts around a text; templates write their own.
    pub add_special_tokens: bool,
    add_generation_prompt: Option<bool>,
    /// Leave the last message open, so that the answer goes on with it.
    pub continue_final_message: bool,
    /// Further variables of the chat template.
    pub kwargs: Map<String, Value>,
    pub keep: Keep,
}

impl Prompting {
    /// What holds for a request that says nothing.
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            add_special_tokens: endpoint == Endpoint::Completions,
            add_generation_prompt: None,
            continue_final_message: false,
            kwargs: Map::new(),
            keep: Keep::All,
        }
    }

    /// Takes the field `name` when it is one of these; hands any other back.
    ///
    /// # Errors
    /// 400 when the value has the wrong type or lies outside its range.
    pub fn take<'a>(
        &mut self,
        endpoint: Endpoint,
        name: &str,
        value: Json<'a>,
        limits: &Limits,
    ) -> Result<Option<Json<'a>>, ApiError> {
        let chat = endpoint == Endpoint::Chat;
        let at = &name;
        match name {
            "add_special_tokens" => self.add_special_tokens = field::boolean(at, &value)?,
            "add_generation_prompt" if chat => {
                self.add_generation_prompt = Some(field::boolean(at, &value)?);
            }
            "continue_final_message" if chat => {
                self.continue_final_message = field::boolean(at, &value)?;
            }
            "chat_template_kwargs" if chat => self.kwargs = kwargs(value)?,
            "truncate_prompt_tokens" => self.keep = keep(at, &value, limits.max_model_len)?,
            _ => return Ok(Some(value)),
        }
        Ok(None)
    }

    /// Checks the fields against each other, after the last was taken.
    ///
    /// # Errors
    /// 400 when two of them contradict.
    pub fn check(&self) -> Result<(), ApiError> {
        if self.continue_final_message && self.add_generation_prompt == Some(true) {
            let reason = "excludes `add_generation_prompt`: set one of them to false";
            return Err(field::invalid(&"continue_final_message", reason));
        }
        Ok(())
    }

    /// Whether the rendered conversation ends with the head of an answer.
    pub fn add_generation_prompt(&self) -> bool {
        self.add_generation_prompt
            .unwrap_or(!self.continue_final_message)
    }

    /// Most tokens of a prompt whose answer may have `max_tokens`.
    pub fn most_tokens(&self, max_tokens: Option<u32>, max_model_len: u32) -> usize {
        let most = match self.keep {
            Keep::All => u32::MAX,
            Keep::Room => max_model_len.saturating_sub(max_tokens.unwrap_or(1)).max(1),
            Keep::Last(most) => most,
        };
        most as usize
    }
}

fn keep(at: &&str, value: &Json, max_model_len: u32) -> Result<Keep, ApiError> {
    match field::integer(at, value, -1..=max_model_len.into())? {
        0 => Err(field::invalid(
            at,
            "is 0, which leaves nothing of the prompt; -1 keeps what fits",
        )),
        most => Ok(u32::try_from(most).map_or(Keep::Room, Keep::Last)),
    }
}

fn kwargs(value: Json) -> Result<Map<String, Value>, ApiError> {
    let name = &"chat_template_kwargs";
    let members = field::object(name, value)?;
    if let Some((key, _)) = members
        .iter()
        .find(|(key, _)| RESERVED.contains(&key.as_ref()))
    {
        let reason = format_args!("must not have the member {}", quote(key));
        return Err(field::invalid(name, reason));
    }
    let value = Json::Object(members);
    let (values, bytes) = size(&value);
    let count = match &value {
        Json::Object(members) => members.len(),
        _ => 0,
    };
    if count > MAX_KWARGS || values > MAX_KWARG_VALUES || bytes > MAX_KWARG_BYTES {
        let reason = format_args!(
            "has {count} members, {values} values and {bytes} bytes of text; \
             at most {MAX_KWARGS}, {MAX_KWARG_VALUES} and {MAX_KWARG_BYTES} are allowed"
        );
        return Err(field::invalid(name, reason));
    }
    match value.into_value() {
        Value::Object(members) => Ok(members),
        _ => Ok(Map::new()),
    }
}

/// Values and bytes of text in `value`, at all levels. JSON is parsed to a bounded depth.
fn size(value: &Json) -> (usize, usize) {
    let add = |(values, bytes): (usize, usize), (more, text): (usize, usize)| {
        (values + more, bytes + text)
    };
    match value {
        Json::String(text) => (1, text.len()),
        Json::Array(items) => items.iter().map(size).fold((1, 0), add),
        Json::Object(members) => members
            .iter()
            .map(|(key, value)| add(size(value), (0, key.len())))
            .fold((1, 0), add),
        _ => (1, 0),
    }
}
