//! Sampling fields that are lists, and their bounds.

use std::borrow::Cow;

use super::error::{ApiError, quote};
use super::field;
use super::json::Json;

/// Most stop strings of a request.
pub const MAX_STOP: usize = 4;
/// Longest stop string, bytes: text of this length may be held back while it could still become one.
pub const MAX_STOP_BYTES: usize = 1024;
/// Most entries of `logit_bias`.
pub const MAX_LOGIT_BIAS: usize = 1024;
/// Most entries of `bad_words`.
pub const MAX_BAD_WORDS: usize = 128;
/// Longest entry of `bad_words`, bytes.
pub const MAX_BAD_WORD_BYTES: usize = 256;

/// Stop strings: one, or a list of them.
pub fn stop(value: Json) -> Result<Vec<String>, ApiError> {
    match value {
        Json::String(text) => Ok(vec![stop_string(&"stop", text)?]),
        Json::Array(_) => {
            let items = field::array(&"stop", value, MAX_STOP)?;
            let strings = items.into_iter().enumerate().map(|(index, item)| {
                let path = format!("stop[{index}]");
                stop_string(&path, field::string(&path, item)?)
            });
            strings.collect()
        }
        other => Err(field::expected(
            &"stop",
            &"a string or an array of strings",
            &other,
        )),
    }
}

fn stop_string(path: &dyn std::fmt::Display, text: Cow<str>) -> Result<String, ApiError> {
    match text.len() {
        0 => Err(field::invalid(
            path,
            "is empty; a stop string needs at least one character",
        )),
        1..=MAX_STOP_BYTES => Ok(text.into_owned()),
        size => Err(field::invalid(
            path,
            format_args!("has {size} bytes; at most {MAX_STOP_BYTES} are allowed"),
        )),
    }
}

/// Texts that must not come.
pub fn bad_words(value: Json) -> Result<Vec<String>, ApiError> {
    let items = field::array(&"bad_words", value, MAX_BAD_WORDS)?;
    let word = |(index, item)| {
        let path = format!("bad_words[{index}]");
        let word = field::string(&path, item)?;
        match word.len() {
            1..=MAX_BAD_WORD_BYTES if !word.trim_start().is_empty() => Ok(word.into_owned()),
            0..=MAX_BAD_WORD_BYTES => Err(field::invalid(&path, "is empty")),
            size => {
                let reason =
                    format_args!("has {size} bytes; at most {MAX_BAD_WORD_BYTES} are allowed");
                Err(field::invalid(&path, reason))
            }
        }
    };
    items.into_iter().enumerate().map(word).collect()
}

/// Token ids with what is added to their logits.
pub fn logit_bias(value: Json, vocab_size: u32) -> Result<Vec<(u32, f64)>, ApiError> {
    let members = field::object(&"logit_bias", value)?;
    if members.len() > MAX_LOGIT_BIAS {
        let reason = format_args!(
            "has {} entries; at most {MAX_LOGIT_BIAS} are allowed",
            members.len()
        );
        return Err(field::invalid(&"logit_bias", reason));
    }
    let entry = |(key, bias): (Cow<str>, Json)| {
        let Some(id) = token_key(&key).filter(|id| *id < vocab_size) else {
            let key = quote(&key);
            let reason = format_args!("has the key {key}; keys are token ids below {vocab_size}");
            return Err(field::invalid(&"logit_bias", reason));
        };
        let bias = field::float(
            &format_args!("logit_bias.{id}"),
            &bias,
            "between -100 and 100",
            |bias| (-100.0..=100.0).contains(&bias),
        )?;
        Ok((id, bias))
    };
    members.into_iter().map(entry).collect()
}

/// A token id in its one decimal spelling; another spelling could name an id twice.
fn token_key(key: &str) -> Option<u32> {
    let plain =
        key.bytes().all(|byte| byte.is_ascii_digit()) && (key == "0" || !key.starts_with('0'));
    key.parse().ok().filter(|_| plain)
}
