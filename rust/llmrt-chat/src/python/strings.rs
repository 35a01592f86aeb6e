//! Python's `str` operations where Rust's differ: whitespace, splitting, character offsets, casing.

/// `str.isspace` of one character: Unicode whitespace and the four information separators.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\x1c'..='\x1f')
}

/// Which end of a string an operation works on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
    Both,
}

/// `strip`, `lstrip`, `rstrip`: removes any of `chars`, or whitespace.
pub(super) fn strip<'a>(text: &'a str, chars: Option<&str>, side: Side) -> &'a str {
    let drop = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if side == Side::Right {
        text
    } else {
        text.trim_start_matches(drop)
    };
    if side == Side::Left {
        text
    } else {
        text.trim_end_matches(drop)
    }
}

/// `split(sep, maxsplit)`; `None` splits at runs of whitespace and drops empty pieces. `sep` must not be empty.
pub(super) fn split<'a>(text: &'a str, sep: Option<&str>, limit: Option<usize>) -> Vec<&'a str> {
    match (sep, limit) {
        (Some(sep), None) => text.split(sep).collect(),
        (Some(sep), Some(limit)) => text.splitn(limit.saturating_add(1), sep).collect(),
        (None, limit) => {
            let mut pieces = Vec::new();
            let mut rest = text.trim_start_matches(is_space);
            while !rest.is_empty() {
                let end = match limit {
                    Some(limit) if pieces.len() >= limit => None,
                    _ => rest.find(is_space),
                };
                let Some(end) = end else {
                    let last = if limit.is_some_and(|limit| pieces.len() >= limit) {
                        rest
                    } else {
                        rest.trim_end_matches(is_space)
                    };
                    pieces.push(last);
                    break;
                };
                pieces.push(&rest[..end]);
                rest = rest[end..].trim_start_matches(is_space);
            }
            pieces
        }
    }
}

/// `rsplit(sep, maxsplit)`, pieces in reading order. `sep` must not be empty.
pub(super) fn rsplit<'a>(text: &'a str, sep: Option<&str>, limit: Option<usize>) -> Vec<&'a str> {
    let Some(limit) = limit else {
        return split(text, sep, None);
    };
    let mut pieces: Vec<&str> = match sep {
        Some(sep) => text.rsplitn(limit.saturating_add(1), sep).collect(),
        None => {
            let mut pieces = Vec::new();
            let mut rest = text.trim_end_matches(is_space);
            while !rest.is_empty() {
                let start = if pieces.len() >= limit {
                    None
                } else {
                    rest.char_indices().rfind(|(_, c)| is_space(*c))
                };
                let Some((at, space)) = start else {
                    pieces.push(rest);
                    break;
                };
                pieces.push(&rest[at + space.len_utf8()..]);
                rest = rest[..at].trim_end_matches(is_space);
            }
            pieces
        }
    };
    pieces.reverse();
    pieces
}

/// `splitlines(keepends)` with Python's line boundaries.
pub(super) fn splitlines(text: &str, keep_ends: bool) -> Vec<&str> {
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_end) {
        let width = if rest[at..].starts_with("\r\n") {
            2
        } else {
            rest[at..].chars().next().map_or(1, char::len_utf8)
        };
        lines.push(&rest[..if keep_ends { at + width } else { at }]);
        rest = &rest[at + width..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

/// `str.title`: the first cased letter of every run of letters in upper case, the others in lower case.
pub(super) fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        if inside {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        inside = c.is_lowercase() || c.is_uppercase();
    }
    out
}

/// `str.capitalize`.
pub(super) fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first
            .to_uppercase()
            .chain(chars.as_str().to_lowercase().chars())
            .collect(),
        None => String::new(),
    }
}

/// The part of `text` between two character offsets, which count from the end when negative, and its byte offset.
pub(super) fn window(text: &str, start: Option<i64>, end: Option<i64>) -> Option<(usize, &str)> {
    if start.is_none() && end.is_none() {
        return Some((0, text));
    }
    let length = text.chars().count() as i64;
    let clamp = |offset: i64| (if offset < 0 { offset + length } else { offset }).clamp(0, length);
    let raw_start = start.unwrap_or(0);
    let (start, end) = (clamp(raw_start), clamp(end.unwrap_or(length)));
    if raw_start > length || start > end {
        return None;
    }
    let byte = |chars: i64| {
        text.char_indices()
            .nth(chars as usize)
            .map_or(text.len(), |(at, _)| at)
    };
    let (from, to) = (byte(start), byte(end));
    Some((from, &text[from..to]))
}
