//! Strict JSON: one pass from the bytes of a body to a tree that borrows from them.
//!
//! Refused beyond what the grammar refuses: bodies that are not UTF-8, lone surrogates, numbers
//! that do not fit a double, repeated keys, deep nesting, and more values than memory should hold.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};

use super::error::{ApiError, quote};

/// Arrays and objects that may stand inside each other.
pub const MAX_DEPTH: usize = 64;
/// Values in a body: a list of a million prompt tokens fits, at 32 bytes each in memory.
pub const MAX_VALUES: usize = 1 << 20;
/// Up to this many members are searched for repeated keys pair by pair; more are sorted first.
const FEW_MEMBERS: usize = 16;

/// Members of an object in their order; keys are unique.
pub type Object<'a> = Vec<(Cow<'a, str>, Json<'a>)>;

/// A JSON value. Strings without escapes borrow from the body.
#[derive(Clone, Debug, PartialEq)]
pub enum Json<'a> {
    Null,
    Bool(bool),
    Number(Number),
    String(Cow<'a, str>),
    Array(Vec<Json<'a>>),
    Object(Object<'a>),
}

impl Json<'_> {
    /// What kind of value this is, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::String(_) => "a string",
            Self::Array(_) => "an array",
            Self::Object(_) => "an object",
        }
    }

    /// The same value, owned.
    pub fn into_value(self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(value),
            Self::Number(number) => Value::Number(number),
            Self::String(text) => Value::String(text.into_owned()),
            Self::Array(items) => Value::Array(items.into_iter().map(Json::into_value).collect()),
            Self::Object(members) => Value::Object(
                members
                    .into_iter()
                    .map(|(key, value)| (key.into_owned(), value.into_value()))
                    .collect(),
            ),
        }
    }
}

/// Checks that a body is declared as JSON. A web page can send a body of no declared type, or of a
/// form's, to a server on its reader's machine without asking it first; one of this type it cannot.
///
/// # Errors
/// 400 unless `content_type` is `application/json` or `application/*+json`, with any parameters.
pub fn check_content_type(content_type: Option<&[u8]>) -> Result<(), ApiError> {
    let declared = content_type
        .and_then(|raw| std::str::from_utf8(raw).ok())
        .unwrap_or_default();
    let media = declared
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    let subtype = media.strip_prefix("application/");
    if subtype.is_some_and(|name| name == "json" || name.ends_with("+json")) {
        return Ok(());
    }
    let found = if declared.is_empty() {
        "none".into()
    } else {
        quote(declared)
    };
    Err(ApiError::invalid(format!(
        "Content-Type must be application/json; the request has {found}."
    )))
}

/// Reads a body that must be one JSON object.
///
/// # Errors
/// 400 that says where the body stops being one.
pub fn parse_object(body: &[u8]) -> Result<Object<'_>, ApiError> {
    match parse(body)? {
        Json::Object(members) => Ok(members),
        other => Err(ApiError::invalid(format!(
            "The body must be a JSON object; it is {}.",
            other.kind()
        ))),
    }
}

/// Reads a body that must be one JSON value.
///
/// # Errors
/// 400 that says where the body stops being one: line, column, and field where there is one.
pub fn parse(body: &[u8]) -> Result<Json<'_>, ApiError> {
    let text = std::str::from_utf8(body).map_err(|error| {
        ApiError::invalid(format!(
            "The body is not UTF-8 at byte {}.",
            error.valid_up_to()
        ))
    })?;
    let mut walk = Walk::default();
    let mut reader = serde_json::Deserializer::from_str(text);
    Node(&mut walk)
        .deserialize(&mut reader)
        .and_then(|value| reader.end().map(|()| value))
        .map_err(|error| walk.locate(&error))
}

/// Where the parser stands.
#[derive(Default)]
struct Walk<'a> {
    path: Vec<Step<'a>>,
    values: usize,
}

enum Step<'a> {
    /// Inside an array or object, before its first item.
    Inside,
    Key(Cow<'a, str>),
    Index(usize),
}

impl<'a> Walk<'a> {
    fn enter<E: Error>(&mut self) -> Result<(), E> {
        if self.path.len() == MAX_DEPTH {
            return Err(E::custom(format_args!(
                "nested deeper than {MAX_DEPTH} levels"
            )));
        }
        self.path.push(Step::Inside);
        Ok(())
    }

    fn leave(&mut self) {
        self.path.pop();
    }

    fn step(&mut self, step: Step<'a>) {
        if let Some(last) = self.path.last_mut() {
            *last = step;
        }
    }

    fn locate(&self, error: &serde_json::Error) -> ApiError {
        let (line, column) = (error.line(), error.column());
        let full = error.to_string();
        let reason = full
            .strip_suffix(&format!(" at line {line} column {column}"))
            .unwrap_or(&full);
        let place = format!("Invalid JSON at line {line}, column {column}");
        let path = self.to_string();
        if path.is_empty() {
            return ApiError::invalid(format!("{place}: {reason}."));
        }
        ApiError::invalid(format!("{place}, in {}: {reason}.", quote(&path))).param(path)
    }
}

impl fmt::Display for Walk<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for (depth, step) in self.path.iter().enumerate() {
            match step {
                Step::Inside => {}
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Key(key) if depth == 0 => f.write_str(key)?,
                Step::Key(key) => write!(f, ".{key}")?,
            }
        }
        Ok(())
    }
}

struct Node<'w, 'a>(&'w mut Walk<'a>);

impl<'a> DeserializeSeed<'a> for Node<'_, 'a> {
    type Value = Json<'a>;

    fn deserialize<D: Deserializer<'a>>(self, reader: D) -> Result<Json<'a>, D::Error> {
        self.0.values += 1;
        if self.0.values > MAX_VALUES {
            return Err(D::Error::custom(format_args!(
                "more than {MAX_VALUES} values"
            )));
        }
        reader.deserialize_any(self)
    }
}

impl<'a> Visitor<'a> for Node<'_, 'a> {
    type Value = Json<'a>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json<'a>, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json<'a>, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json<'a>, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json<'a>, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Json<'a>, E> {
        Number::from_f64(value)
            .map(Json::Number)
            .ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_borrowed_str<E>(self, text: &'a str) -> Result<Json<'a>, E> {
        Ok(Json::String(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json<'a>, E> {
        Ok(Json::String(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut items: A) -> Result<Json<'a>, A::Error> {
        let walk = self.0;
        let mut array = Vec::new();
        walk.enter()?;
        walk.step(Step::Index(0));
        while let Some(item) = items.next_element_seed(Node(&mut *walk))? {
            array.push(item);
            walk.step(Step::Index(array.len()));
        }
        walk.leave();
        Ok(Json::Array(array))
    }

    fn visit_map<A: MapAccess<'a>>(self, mut members: A) -> Result<Json<'a>, A::Error> {
        let walk = self.0;
        let mut object = Object::new();
        walk.enter()?;
        while let Some(key) = members.next_key_seed(Key)? {
            walk.step(Step::Key(key.clone()));
            object.push((key, members.next_value_seed(Node(&mut *walk))?));
        }
        if let Some(key) = repeated(&object) {
            walk.step(Step::Key(key.clone()));
            return Err(A::Error::custom("the key is there twice"));
        }
        walk.leave();
        Ok(Json::Object(object))
    }
}

struct Key;

impl<'a> DeserializeSeed<'a> for Key {
    type Value = Cow<'a, str>;

    fn deserialize<D: Deserializer<'a>>(self, reader: D) -> Result<Cow<'a, str>, D::Error> {
        reader.deserialize_str(self)
    }
}

impl<'a> Visitor<'a> for Key {
    type Value = Cow<'a, str>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, key: &'a str) -> Result<Cow<'a, str>, E> {
        Ok(Cow::Borrowed(key))
    }

    fn visit_str<E>(self, key: &str) -> Result<Cow<'a, str>, E> {
        Ok(Cow::Owned(key.to_owned()))
    }
}

fn repeated<'o, 'a>(object: &'o Object<'a>) -> Option<&'o Cow<'a, str>> {
    if object.len() <= FEW_MEMBERS {
        let known = |end: usize, key| object[..end].iter().any(|(other, _)| other == key);
        return object
            .iter()
            .enumerate()
            .find(|(end, (key, _))| known(*end, key))
            .map(|(_, (key, _))| key);
    }
    let mut keys: Vec<_> = object.iter().map(|(key, _)| key).collect();
    keys.sort_unstable();
    keys.windows(2)
        .find(|pair| pair[0] == pair[1])
        .map(|pair| pair[0])
}
