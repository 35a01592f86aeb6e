//! Rewrites a template's source into what the engine accepts.
//!
//! Two differences to Jinja2 as `transformers` sets it up: line endings are unified before parsing, and the
//! `{% generation %}` tag, which marks assistant text for training, only opens a scope here.

/// Returns `source` with `\n` line endings and `generation` blocks turned into `with` blocks.
///
/// Whitespace control (`{%-`, `-%}`) is kept. Comments, raw blocks and string literals are left alone.
pub(crate) fn adapt(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(open) = next_delimiter(rest) {
        out.push_str(&rest[..open]);
        rest = &rest[open..];
        let end = if rest.starts_with("{#") {
            rest.find("#}").map_or(rest.len(), |at| at + 2)
        } else {
            tag_end(rest)
        };
        let (tag, after) = rest.split_at(end);
        match tag_name(tag) {
            Some("generation") => out.push_str(&tag.replacen("generation", "with", 1)),
            Some("endgeneration") => out.push_str(&tag.replacen("endgeneration", "endwith", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
        if tag_name(tag) == Some("raw") {
            let end = raw_end(rest);
            out.push_str(&rest[..end]);
            rest = &rest[end..];
        }
    }
    out.push_str(rest);
    out
}

/// Offset of the next `{{`, `{%` or `{#`.
fn next_delimiter(text: &str) -> Option<usize> {
    text.as_bytes()
        .windows(2)
        .position(|pair| pair[0] == b'{' && matches!(pair[1], b'{' | b'%' | b'#'))
}

/// Length of the tag or expression that `text` starts with, quotes respected.
fn tag_end(text: &str) -> usize {
    let bytes = text.as_bytes();
    let close: &[u8] = if bytes[1] == b'%' { b"%}" } else { b"}}" };
    let mut quote = None;
    let mut at = 2;
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(open), byte) if byte == open => quote = None,
            (None, byte @ (b'"' | b'\'')) => quote = Some(byte),
            (None, _) if bytes[at..].starts_with(close) => return at + 2,
            _ => {}
        }
        at += 1;
    }
    bytes.len()
}

/// The only word of a block tag without arguments, such as `generation` or `raw`.
fn tag_name(tag: &str) -> Option<&str> {
    let inner = tag.strip_prefix("{%")?.strip_suffix("%}")?;
    Some(
        inner
            .strip_prefix(['-', '+'])
            .unwrap_or(inner)
            .trim_end_matches(['-', '+'])
            .trim(),
    )
}

/// Offset of the `endraw` tag that closes a raw block.
fn raw_end(text: &str) -> usize {
    text.match_indices("{%")
        .find(|(at, _)| {
            let body = text[at + 2..].trim_start_matches(['-', '+']).trim_start();
            body.starts_with("endraw")
        })
        .map_or(text.len(), |(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::adapt;

    #[test]
    fn generation_tags_open_a_scope_and_keep_whitespace_control() {
        assert_eq!(
            adapt("a{%- generation -%} x {% endgeneration %}b"),
            "a{%- with -%} x {% endwith %}b"
        );
    }

    #[test]
    fn strings_comments_and_raw_blocks_are_left_alone() {
        for source in [
            "{{ '{% generation %}' }}",
            "{# {% generation %} #}",
            "{% raw %}{% generation %}{% endraw %}",
            "{% set x = \"%}{% generation %}\" %}",
        ] {
            assert_eq!(adapt(source), source);
        }
    }

    #[test]
    fn line_endings_are_unified() {
        assert_eq!(adapt("a\r\nb\rc"), "a\nb\nc");
    }

    #[test]
    fn unclosed_tags_are_left_for_the_parser() {
        for source in ["{%", "{{ 'a", "{#", "é{% raw %}é", "{% generation"] {
            assert_eq!(adapt(source), source);
        }
    }
}
