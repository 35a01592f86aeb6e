//! Methods of Python's `str` and `list`; those of `dict` and the rest come from `minijinja-contrib`.

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::filters::guard_format;
use super::strings::{self, Side};

/// Widest padding a template may ask for, in characters.
const MAX_PAD: usize = 4096;

type Outcome = Result<Value, Error>;

/// Calls `value.name(*args)` as Python would.
pub(super) fn call(state: &State, value: &Value, name: &str, args: &[Value]) -> Outcome {
    if let Some(text) = value.as_str() {
        if name == "format" {
            guard_format(text)?;
        }
        return match string_method(text, name, args) {
            Some(outcome) => outcome,
            None => unknown_method_callback(state, value, name, args),
        };
    }
    match (value.kind(), name) {
        (ValueKind::Seq | ValueKind::Iterable, "index") => {
            let (wanted,): (&Value,) = from_args(args)?;
            let at = value.try_iter()?.position(|item| item == *wanted);
            at.map(Value::from)
                .ok_or_else(|| invalid("value is not in list"))
        }
        (ValueKind::Seq | ValueKind::Iterable, "count") => {
            let (wanted,): (&Value,) = from_args(args)?;
            Ok(Value::from(
                value.try_iter()?.filter(|item| item == wanted).count(),
            ))
        }
        _ => unknown_method_callback(state, value, name, args),
    }
}

fn string_method(text: &str, name: &str, args: &[Value]) -> Option<Outcome> {
    Some(match name {
        "strip" => strip(text, args, Side::Both),
        "lstrip" => strip(text, args, Side::Left),
        "rstrip" => strip(text, args, Side::Right),
        "split" => split(text, args, strings::split),
        "rsplit" => split(text, args, strings::rsplit),
        "splitlines" => splitlines(text, args),
        "partition" => partition(text, args, Side::Left),
        "rpartition" => partition(text, args, Side::Right),
        "replace" => replace(text, args),
        "startswith" => affix(text, args, |text, affix| text.starts_with(affix)),
        "endswith" => affix(text, args, |text, affix| text.ends_with(affix)),
        "removeprefix" => remove(text, args, |text, affix| text.strip_prefix(affix)),
        "removesuffix" => remove(text, args, |text, affix| text.strip_suffix(affix)),
        "find" => find(text, args, text_find).map(|at| Value::from(at.unwrap_or(-1))),
        "rfind" => find(text, args, text_rfind).map(|at| Value::from(at.unwrap_or(-1))),
        "index" => found(find(text, args, text_find)),
        "rindex" => found(find(text, args, text_rfind)),
        "count" => count(text, args),
        "join" => join(text, args),
        "title" => no_args(args, || strings::title(text)),
        "capitalize" => no_args(args, || strings::capitalize(text)),
        "upper" => no_args(args, || text.to_uppercase()),
        "lower" => no_args(args, || text.to_lowercase()),
        "isspace" => no_args(args, || {
            !text.is_empty() && text.chars().all(strings::is_space)
        }),
        "isdigit" | "isnumeric" | "isdecimal" => {
            no_args(args, || all_chars(text, char::is_numeric))
        }
        "isalpha" => no_args(args, || all_chars(text, char::is_alphabetic)),
        "isalnum" => no_args(args, || all_chars(text, char::is_alphanumeric)),
        "islower" => no_args(args, || cased(text, char::is_lowercase, char::is_uppercase)),
        "isupper" => no_args(args, || cased(text, char::is_uppercase, char::is_lowercase)),
        "ljust" => pad(text, args, Side::Right),
        "rjust" => pad(text, args, Side::Left),
        "zfill" => zfill(text, args),
        _ => return None,
    })
}

fn no_args<T: Into<Value>>(args: &[Value], result: impl FnOnce() -> T) -> Outcome {
    let () = from_args(args)?;
    Ok(result().into())
}

fn all_chars(text: &str, test: impl Fn(char) -> bool) -> bool {
    !text.is_empty() && text.chars().all(test)
}

/// Whether `text` has letters of the wanted case and none of the other.
fn cased(text: &str, wanted: impl Fn(char) -> bool, other: impl Fn(char) -> bool) -> bool {
    text.chars().any(wanted) && !text.chars().any(other)
}

fn strip(text: &str, args: &[Value], side: Side) -> Outcome {
    let (chars,): (Option<&str>,) = from_args(args)?;
    Ok(Value::from(strings::strip(text, chars, side)))
}

type Splitter = for<'a> fn(&'a str, Option<&str>, Option<usize>) -> Vec<&'a str>;

fn split(text: &str, args: &[Value], splitter: Splitter) -> Outcome {
    let (sep, limit, kwargs): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
    let sep = sep.or(kwargs.get("sep")?);
    let limit = limit.or(kwargs.get("maxsplit")?).unwrap_or(-1);
    kwargs.assert_all_used()?;
    if sep == Some("") {
        return Err(invalid("empty separator"));
    }
    Ok(splitter(text, sep, usize::try_from(limit).ok())
        .into_iter()
        .map(Value::from)
        .collect())
}

fn splitlines(text: &str, args: &[Value]) -> Outcome {
    let (keep, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
    let keep = keep.or(kwargs.get("keepends")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    Ok(strings::splitlines(text, keep)
        .into_iter()
        .map(Value::from)
        .collect())
}

/// `partition` and `rpartition`, which search from the left and the right.
fn partition(text: &str, args: &[Value], from: Side) -> Outcome {
    let (sep,): (&str,) = from_args(args)?;
    if sep.is_empty() {
        return Err(invalid("empty separator"));
    }
    let at = if from == Side::Right {
        text.rfind(sep)
    } else {
        text.find(sep)
    };
    let parts = match at {
        Some(at) => [&text[..at], sep, &text[at + sep.len()..]],
        None if from == Side::Right => ["", "", text],
        None => [text, "", ""],
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

fn replace(text: &str, args: &[Value]) -> Outcome {
    let (old, new, count, kwargs): (&str, &str, Option<i64>, Kwargs) = from_args(args)?;
    let count = count.or(kwargs.get("count")?).unwrap_or(-1);
    kwargs.assert_all_used()?;
    Ok(Value::from(match usize::try_from(count) {
        Ok(count) => text.replacen(old, new, count),
        Err(_) => text.replace(old, new),
    }))
}

/// `startswith` and `endswith`: one string or any of several, within optional character offsets.
fn affix(text: &str, args: &[Value], test: impl Fn(&str, &str) -> bool) -> Outcome {
    let (affixes, start, end): (&Value, Option<i64>, Option<i64>) = from_args(args)?;
    let Some((_, text)) = strings::window(text, start, end) else {
        return Ok(Value::from(false));
    };
    if let Some(affix) = affixes.as_str() {
        return Ok(Value::from(test(text, affix)));
    }
    if !matches!(affixes.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Err(invalid("expected a string or a tuple of strings"));
    }
    for affix in affixes.try_iter()? {
        let affix = affix
            .as_str()
            .ok_or_else(|| invalid("expected a tuple of strings"))?;
        if test(text, affix) {
            return Ok(Value::from(true));
        }
    }
    Ok(Value::from(false))
}

fn remove(
    text: &str,
    args: &[Value],
    strip: for<'a> fn(&'a str, &str) -> Option<&'a str>,
) -> Outcome {
    let (affix,): (&str,) = from_args(args)?;
    Ok(Value::from(strip(text, affix).unwrap_or(text)))
}

fn text_find(text: &str, wanted: &str) -> Option<usize> {
    text.find(wanted)
}

fn text_rfind(text: &str, wanted: &str) -> Option<usize> {
    text.rfind(wanted)
}

/// Character offset of a substring, within optional character offsets.
fn find(
    text: &str,
    args: &[Value],
    find: fn(&str, &str) -> Option<usize>,
) -> Result<Option<i64>, Error> {
    let (wanted, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
    let Some((from, inside)) = strings::window(text, start, end) else {
        return Ok(None);
    };
    Ok(find(inside, wanted).map(|at| text[..from + at].chars().count() as i64))
}

fn found(at: Result<Option<i64>, Error>) -> Outcome {
    at?.map(Value::from)
        .ok_or_else(|| invalid("substring not found"))
}

fn count(text: &str, args: &[Value]) -> Outcome {
    let (wanted, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
    let count =
        strings::window(text, start, end).map_or(0, |(_, text)| text.matches(wanted).count());
    Ok(Value::from(count))
}

fn join(separator: &str, args: &[Value]) -> Outcome {
    let (items,): (&Value,) = from_args(args)?;
    let mut out = String::new();
    for (i, item) in items.try_iter()?.enumerate() {
        let text = item
            .as_str()
            .ok_or_else(|| invalid(format!("join: expected strings, found {}", item.kind())))?;
        out.push_str(if i > 0 { separator } else { "" });
        out.push_str(text);
    }
    Ok(Value::from(out))
}

fn pad(text: &str, args: &[Value], side: Side) -> Outcome {
    let (width, fill): (usize, Option<&str>) = from_args(args)?;
    let missing = missing(text, width)?;
    let fill = fill.unwrap_or(" ").repeat(missing);
    Ok(Value::from(if side == Side::Left {
        fill + text
    } else {
        text.to_owned() + &fill
    }))
}

fn zfill(text: &str, args: &[Value]) -> Outcome {
    let (width,): (usize,) = from_args(args)?;
    let (sign, digits) = match text.strip_prefix(['+', '-']) {
        Some(digits) => text.split_at(text.len() - digits.len()),
        None => ("", text),
    };
    Ok(Value::from(format!(
        "{sign}{}{digits}",
        "0".repeat(missing(text, width)?)
    )))
}

fn missing(text: &str, width: usize) -> Result<usize, Error> {
    if width > MAX_PAD {
        return Err(invalid(format!(
            "padding is limited to {MAX_PAD} characters"
        )));
    }
    Ok(width.saturating_sub(text.chars().count()))
}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}
