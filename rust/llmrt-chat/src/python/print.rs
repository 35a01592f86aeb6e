//! How Python prints values: `str()` and `repr()`.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// Nesting a value may have to be printed.
pub(super) const MAX_DEPTH: usize = 128;

/// Python's `str(value)`; undefined prints as nothing.
pub(super) fn to_str(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map | ValueKind::Number => {
            let mut out = String::new();
            write_repr(&mut out, value, 0)?;
            Ok(out)
        }
        _ => Ok(value.to_string()),
    }
}

fn write_repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    match value.kind() {
        ValueKind::String => write_str_repr(out, value.as_str().unwrap_or_default()),
        ValueKind::Number if !value.is_integer() => {
            out.push_str(&float_repr(f64::try_from(value.clone())?))
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                write_repr(out, &key, depth + 1)?;
                out.push_str(": ");
                write_repr(out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (i, item) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                write_repr(out, &item, depth + 1)?;
            }
            out.push(']');
        }
        ValueKind::Undefined => out.push_str("Undefined"),
        _ => write!(out, "{value}")?,
    }
    Ok(())
}

/// `repr` of a string: single quotes unless only those occur inside.
fn write_str_repr(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            // Writing to a String cannot fail.
            c if (c as u32) < 0x100 => _ = write!(out, "\\x{:02x}", c as u32),
            c if (c as u32) < 0x1_0000 => _ = write!(out, "\\u{:04x}", c as u32),
            c => _ = write!(out, "\\U{:08x}", c as u32),
        }
    }
    out.push(quote);
}

fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    // `escape_debug` escapes what is not printable, and combining marks, which Python prints.
    c.is_alphanumeric() || is_combining(c) || c.escape_debug().len() == 1
}

fn is_combining(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}' | '\u{1ab0}'..='\u{1aff}' | '\u{20d0}'..='\u{20f0}' | '\u{fe00}'..='\u{fe0f}')
}

/// `repr` of a float, which has at least one decimal or a signed exponent of two digits.
pub(super) fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 {
            "inf".into()
        } else {
            "-inf".into()
        };
    }
    let text = format!("{value:?}");
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => {
            let (sign, exponent) = match exponent.strip_prefix('-') {
                Some(exponent) => ('-', exponent),
                None => ('+', exponent),
            };
            format!(
                "{}e{sign}{exponent:0>2}",
                digits.strip_suffix(".0").unwrap_or(digits)
            )
        }
    }
}

pub(super) fn too_deep() -> Error {
    Error::new(ErrorKind::InvalidOperation, "value is nested too deeply")
}
