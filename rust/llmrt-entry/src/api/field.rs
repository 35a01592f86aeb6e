//! Reading one field: the right type, the right range, and a message that names the field.

use std::borrow::Cow;
use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::Number;

use super::error::ApiError;
use super::json::{Json, Object};

/// 400: the field at `path` must be `wanted`; says what it is instead.
pub fn expected(path: &dyn Display, wanted: &dyn Display, found: &Json) -> ApiError {
    let found: &dyn Display = match found {
        Json::Number(number) => number,
        Json::Bool(value) => value,
        other => &other.kind(),
    };
    invalid(path, format_args!("must be {wanted}, not {found}"))
}

/// 400 about the field at `path`, whose message is the path and `reason`.
pub fn invalid(path: &dyn Display, reason: impl Display) -> ApiError {
    let path = path.to_string();
    ApiError::invalid(format!("`{path}` {reason}.")).param(path)
}

/// A boolean.
pub fn boolean(path: &dyn Display, value: &Json) -> Result<bool, ApiError> {
    match value {
        Json::Bool(value) => Ok(*value),
        other => Err(expected(path, &"true or false", other)),
    }
}

/// A string.
pub fn string<'a>(path: &dyn Display, value: Json<'a>) -> Result<Cow<'a, str>, ApiError> {
    match value {
        Json::String(text) => Ok(text),
        other => Err(expected(path, &"a string", &other)),
    }
}

/// An array of at most `most` items.
pub fn array<'a>(
    path: &dyn Display,
    value: Json<'a>,
    most: usize,
) -> Result<Vec<Json<'a>>, ApiError> {
    match value {
        Json::Array(items) if items.len() <= most => Ok(items),
        Json::Array(items) => Err(invalid(
            path,
            format_args!("has {} items; at most {most} are allowed", items.len()),
        )),
        other => Err(expected(path, &"an array", &other)),
    }
}

/// An object.
pub fn object<'a>(path: &dyn Display, value: Json<'a>) -> Result<Object<'a>, ApiError> {
    match value {
        Json::Object(members) => Ok(members),
        other => Err(expected(path, &"an object", &other)),
    }
}

/// An integer within `range`. As in JSON Schema, `2.0` is one.
pub fn integer(
    path: &dyn Display,
    value: &Json,
    range: RangeInclusive<i64>,
) -> Result<i64, ApiError> {
    let found = match value {
        Json::Number(number) => whole(number).filter(|number| range.contains(number)),
        _ => None,
    };
    found.ok_or_else(|| match (*range.start(), *range.end()) {
        (i64::MIN, i64::MAX) => expected(path, &"an integer of 64 bits", value),
        (start, i64::MAX) => expected(path, &format_args!("an integer of at least {start}"), value),
        (start, end) => expected(
            path,
            &format_args!("an integer between {start} and {end}"),
            value,
        ),
    })
}

/// A number for which `allowed` holds, also after rounding to the `f32` that a core may compute with.
/// `wanted` describes it.
pub fn float(
    path: &dyn Display,
    value: &Json,
    wanted: &str,
    allowed: impl Fn(f64) -> bool,
) -> Result<f64, ApiError> {
    let given = match value {
        Json::Number(number) => number.as_f64(),
        _ => None,
    };
    let number = given
        .filter(|number| allowed(*number))
        .ok_or_else(|| expected(path, &format_args!("a number {wanted}"), value))?;
    let rounded = number as f32;
    if rounded.is_finite() && allowed(f64::from(rounded)) {
        return Ok(number);
    }
    let reason = format_args!("is {number:e}, which a number of 32 bits cannot hold");
    Err(invalid(path, reason))
}

/// A list of at most `most` token ids of a vocabulary of `vocab_size`.
pub fn token_ids(
    path: &dyn Display,
    value: Json,
    vocab_size: u32,
    most: usize,
) -> Result<Vec<u32>, ApiError> {
    let items = array(path, value, most)?;
    items
        .iter()
        .enumerate()
        .map(|(index, item)| token_id(&format_args!("{path}[{index}]"), item, vocab_size))
        .collect()
}

fn token_id(path: &dyn Display, value: &Json, vocab_size: u32) -> Result<u32, ApiError> {
    let last = i64::from(vocab_size) - 1;
    let id = integer(path, value, 0..=last)?;
    u32::try_from(id).map_err(|_| expected(path, &"a token id", value))
}

fn whole(number: &Number) -> Option<i64> {
    // Every whole double of this size is exact, so that the cast loses nothing.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    number.as_i64().or_else(|| {
        let number = number.as_f64()?;
        (number.fract() == 0.0 && number.abs() <= EXACT).then_some(number as i64)
    })
}
