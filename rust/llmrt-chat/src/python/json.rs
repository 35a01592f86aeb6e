//! `json.dumps`, with the defaults chat templates get: no HTML escapes, `ensure_ascii=False`.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::print::{MAX_DEPTH, float_repr, too_deep};

/// Arguments of `json.dumps`.
pub(super) struct Style {
    pub ensure_ascii: bool,
    /// Text of one level of indentation; everything on one line when `None`.
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
}

/// Serialises `value`; undefined values and values that are not data are errors.
pub(super) fn dumps(value: &Value, style: &Style) -> Result<String, Error> {
    let mut out = String::new();
    write_value(&mut out, value, style, 0)?;
    Ok(out)
}

fn write_value(out: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value)?),
        ValueKind::String => {
            write_string(out, value.as_str().unwrap_or_default(), style.ensure_ascii)
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?;
            write_items(out, '[', ']', items, style, depth, |out, item| {
                write_value(out, &item, style, depth + 1)
            })?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort_keys {
                keys.sort();
            }
            write_items(out, '{', '}', keys.into_iter(), style, depth, |out, key| {
                write_string(out, &key_text(&key)?, style.ensure_ascii);
                out.push_str(&style.key_separator);
                write_value(out, &value.get_item(&key)?, style, depth + 1)
            })?;
        }
        kind => {
            let message = format!("value of type {kind} is not JSON serializable");
            return Err(Error::new(ErrorKind::BadSerialization, message));
        }
    }
    Ok(())
}

fn write_items(
    out: &mut String,
    open: char,
    close: char,
    items: impl Iterator<Item = Value>,
    style: &Style,
    depth: usize,
    mut write: impl FnMut(&mut String, Value) -> Result<(), Error>,
) -> Result<(), Error> {
    out.push(open);
    let mut empty = true;
    for item in items {
        if !empty {
            out.push_str(&style.item_separator);
        }
        empty = false;
        new_line(out, style, depth + 1);
        write(out, item)?;
    }
    if !empty {
        new_line(out, style, depth);
    }
    out.push(close);
    Ok(())
}

fn new_line(out: &mut String, style: &Style, level: usize) {
    if let Some(indent) = &style.indent {
        out.push('\n');
        for _ in 0..level {
            out.push_str(indent);
        }
    }
}

fn number(value: &Value) -> Result<String, Error> {
    if value.is_integer() {
        return Ok(value.to_string());
    }
    let float = f64::try_from(value.clone())?;
    Ok(match float {
        f if f.is_nan() => "NaN".into(),
        f if f.is_infinite() => if f > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        f => float_repr(f),
    })
}

fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok("null".into()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.into()),
        ValueKind::Number => number(key),
        kind => Err(Error::new(
            ErrorKind::BadSerialization,
            format!("keys must be strings, not {kind}"),
        )),
    }
}

fn write_string(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ensure_ascii && !c.is_ascii()) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a String cannot fail.
                    _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
