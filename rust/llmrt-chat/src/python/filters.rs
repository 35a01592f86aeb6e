//! Filters and tests whose Jinja2 meaning differs from the engine's, or whose cost needs a bound.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::json::{Style, dumps};
use super::print::to_str;
use super::strings::{self, Side};

/// Widest indentation, padding or batch a template may ask for.
const MAX_WIDTH: usize = 4096;

pub(super) fn register(env: &mut Environment<'static>) {
    env.add_filter("tojson", tojson);
    env.add_filter("trim", trim);
    env.add_filter("string", to_str);
    env.add_filter("indent", indent);
    env.add_filter("format", format);
    env.add_filter("batch", batch);
    env.add_filter("slice", slice);
    env.add_test("sequence", is_sequence);
    env.add_test("iterable", is_iterable);
    env.add_test("number", |value: &Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
    });
}

/// `json.dumps(value, ensure_ascii, indent, separators, sort_keys)`, the last by name only.
fn tojson(
    value: &Value,
    ensure_ascii: Option<bool>,
    indent: Option<Value>,
    separators: Option<Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let indent = match indent
        .or(kwargs.get("indent")?)
        .filter(|indent| !indent.is_none())
    {
        None => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(bounded(usize::try_from(indent)?)?),
        }),
    };
    let separators = separators
        .or(kwargs.get("separators")?)
        .filter(|pair| !pair.is_none());
    let (item_separator, key_separator) = match separators {
        Some(pair) => (
            to_str(&pair.get_item_by_index(0)?)?,
            to_str(&pair.get_item_by_index(1)?)?,
        ),
        None => (
            if indent.is_some() { "," } else { ", " }.into(),
            ": ".into(),
        ),
    };
    let style = Style {
        ensure_ascii: ensure_ascii
            .or(kwargs.get("ensure_ascii")?)
            .unwrap_or(false),
        indent,
        item_separator,
        key_separator,
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    dumps(value, &style)
}

/// `str(value).strip(chars)`.
fn trim(value: &Value, chars: Option<&str>) -> Result<Value, Error> {
    match value.as_str() {
        Some(text) => Ok(Value::from(strings::strip(text, chars, Side::Both))),
        None => Ok(Value::from(strings::strip(
            &to_str(value)?,
            chars,
            Side::Both,
        ))),
    }
}

/// Prefixes every line but the first with `width` spaces or a text; blank lines only when asked.
fn indent(
    value: &Value,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let prefix = match width.or(kwargs.get("width")?) {
        None => " ".repeat(4),
        Some(width) => match width.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(bounded(usize::try_from(width)?)?),
        },
    };
    let first = first.or(kwargs.get("first")?).unwrap_or(false);
    let blank = blank.or(kwargs.get("blank")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    let mut out = String::new();
    for (i, line) in strings::splitlines(&(to_str(value)? + "\n"), false)
        .into_iter()
        .enumerate()
    {
        out.push_str(if i > 0 { "\n" } else { "" });
        if (i > 0 || first) && (blank || !line.is_empty() || (i == 0 && first)) {
            out.push_str(&prefix);
        }
        out.push_str(line);
    }
    Ok(out)
}

fn format(state: &State, text: &Value, args: Rest<Value>) -> Result<Value, Error> {
    guard_format(text.as_str().unwrap_or_default())?;
    minijinja::filters::format(state, text, args)
}

/// Refuses format strings that ask for a wide field.
pub(super) fn guard_format(text: &str) -> Result<(), Error> {
    let mut digits = 0;
    for byte in text.bytes() {
        digits = if byte.is_ascii_digit() { digits + 1 } else { 0 };
        if digits > 4 {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "format: fields are limited to 9999 characters",
            ));
        }
    }
    Ok(())
}

fn batch(state: &State, value: Value, count: usize, fill: Option<Value>) -> Result<Value, Error> {
    minijinja::filters::batch(state, value, bounded(count)?, fill)
}

fn slice(state: &State, value: Value, count: usize, fill: Option<Value>) -> Result<Value, Error> {
    minijinja::filters::slice(state, value, bounded(count)?, fill)
}

/// In Python whatever has a length and can be indexed: also text and dicts.
fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::Iterable | ValueKind::String | ValueKind::Map
    )
}

fn is_iterable(value: &Value) -> bool {
    is_sequence(value) || value.is_undefined() || value.try_iter().is_ok_and(|_| !value.is_none())
}

fn bounded(width: usize) -> Result<usize, Error> {
    if width > MAX_WIDTH {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("widths are limited to {MAX_WIDTH}"),
        ));
    }
    Ok(width)
}
