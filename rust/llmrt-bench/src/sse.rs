//! Events of a stream, read with as little work as a measurement needs: no JSON is parsed for a token.

use memchr::memmem::Finder;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// Longest line; a longer one is no event stream.
const MAX_LINE: usize = 16 << 20;

/// Tokens as the server counted them.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: u64,
    #[serde(default)]
    pub completion_tokens: u64,
}

/// What one event says. Text and usage may come together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// Whether the chunk carries text: an answer's, a thought's or a tool call's.
    pub text: bool,
    pub usage: Option<Usage>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Chunk(Chunk),
    /// `[DONE]`.
    Done,
    /// The server reports an error inside the stream.
    Error(String),
    /// Bytes that no OpenAI-compatible server sends, quoted.
    Garbage(String),
}

/// Cuts a stream of bytes into events.
pub struct Scanner {
    /// Begin of a line whose end has not arrived.
    partial: Vec<u8>,
    reader: Reader,
}

impl Scanner {
    #[must_use]
    pub fn new() -> Self {
        Self {
            partial: Vec::new(),
            reader: Reader::new(),
        }
    }

    /// Takes bytes as they arrived and hands out the events that they complete.
    pub fn feed(&mut self, mut bytes: &[u8], mut sink: impl FnMut(Event)) {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            let event = if self.partial.is_empty() {
                self.reader.line(line)
            } else {
                self.partial.extend_from_slice(line);
                let event = self.reader.line(&self.partial);
                self.partial.clear();
                event
            };
            if let Some(event) = event {
                sink(event);
            }
            bytes = rest;
        }
        self.partial.extend_from_slice(bytes);
        if self.partial.len() > MAX_LINE {
            let head = quote(&self.partial);
            self.partial.clear();
            sink(Event::Garbage(head));
        }
    }
}

/// Reads lines. Keys are found as bytes: in valid JSON a quote inside a string is escaped, so `"key"` is a key or a
/// whole string value, and what follows it tells the two apart.
struct Reader {
    texts: [Finder<'static>; 5],
    usage: Finder<'static>,
    error: Finder<'static>,
}

impl Reader {
    fn new() -> Self {
        let keys = [
            r#""content""#,
            r#""text""#,
            r#""reasoning_content""#,
            r#""reasoning""#,
            r#""arguments""#,
        ];
        Self {
            texts: keys.map(Finder::new),
            usage: Finder::new(r#""usage""#),
            error: Finder::new(r#""error""#),
        }
    }

    fn line(&self, line: &[u8]) -> Option<Event> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if let Some(data) = line.strip_prefix(b"data:") {
            return Some(self.data(data.trim_ascii()));
        }
        let other = [&b":"[..], b"event:", b"id:", b"retry:"];
        if line.is_empty() || other.iter().any(|field| line.starts_with(field)) {
            return None;
        }
        Some(Event::Garbage(quote(line)))
    }

    fn data(&self, data: &[u8]) -> Event {
        if data == b"[DONE]" {
            return Event::Done;
        }
        if !(data.starts_with(b"{") && data.ends_with(b"}")) {
            return Event::Garbage(quote(data));
        }
        let text = self.texts.iter().any(|key| has_text(key, data));
        if !text {
            // Few chunks are without text: these are worth a full look.
            if serde_json::from_slice::<IgnoredAny>(data).is_err() {
                return Event::Garbage(quote(data));
            }
            if values(&self.error, data).any(|value| !value.starts_with(b"null")) {
                return Event::Error(error_message(data).unwrap_or_else(|| quote(data)));
            }
        }
        let has_usage = values(&self.usage, data).any(|value| value.starts_with(b"{"));
        Event::Chunk(Chunk {
            text,
            usage: if has_usage { usage(data) } else { None },
        })
    }
}

/// Whether the key has a string that is not empty.
fn has_text(key: &Finder<'_>, data: &[u8]) -> bool {
    values(key, data).any(|value| value.len() > 1 && value[0] == b'"' && value[1] != b'"')
}

/// What follows each `"key":`, up to the end of the data.
fn values<'a>(key: &'a Finder<'_>, data: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    key.find_iter(data).filter_map(|at| {
        let rest = data[at + key.needle().len()..].trim_ascii_start();
        Some(rest.strip_prefix(b":")?.trim_ascii_start())
    })
}

fn usage(data: &[u8]) -> Option<Usage> {
    #[derive(Deserialize)]
    struct Body {
        usage: Option<Usage>,
    }
    serde_json::from_slice::<Body>(data).ok()?.usage
}

/// Message of an OpenAI error body, or of a bare `{"error": "message"}`.
#[must_use]
pub fn error_message(body: &[u8]) -> Option<String> {
    let body: serde_json::Value = serde_json::from_slice(body).ok()?;
    let error = body.get("error").unwrap_or(&body);
    let message = error.get("message").unwrap_or(error);
    Some(shorten(message.as_str()?))
}

/// The begin of some bytes, as text for a message.
#[must_use]
pub fn quote(bytes: &[u8]) -> String {
    let head = &bytes[..bytes.len().min(1024)];
    shorten(&String::from_utf8_lossy(head))
}

fn shorten(text: &str) -> String {
    const MOST: usize = 200;
    let mut short: String = text.trim().chars().take(MOST).collect();
    if text.trim().chars().nth(MOST).is_some() {
        short.push_str(" ...");
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn events(bytes: &[u8]) -> Vec<Event> {
        let mut found = Vec::new();
        Scanner::new().feed(bytes, |event| found.push(event));
        found
    }

    fn one(data: &str) -> Event {
        let mut all = events(format!("data: {data}\n\n").as_bytes());
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    fn chunk(text: bool, usage: Option<(u64, u64)>) -> Event {
        let usage = usage.map(|(prompt_tokens, completion_tokens)| Usage {
            prompt_tokens,
            completion_tokens,
        });
        Event::Chunk(Chunk { text, usage })
    }

    #[test]
    fn text_is_seen_in_every_dialect() {
        for (data, text) in [
            (r#"{"choices":[{"delta":{"content":"a"}}]}"#, true),
            (
                r#"{"choices": [{"delta": {"content": "a"}}], "usage": null}"#,
                true,
            ),
            (
                r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
                false,
            ),
            (r#"{"choices":[{"delta":{"content":null}}]}"#, false),
            (
                r#"{"choices":[{"delta":{"reasoning_content":"x","content":null}}]}"#,
                true,
            ),
            (
                r#"{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"{"}}]}}]}"#,
                true,
            ),
            (r#"{"choices":[{"text":" b","index":0}]}"#, true),
            (r#"{"choices":[{"text":"","finish_reason":"stop"}]}"#, false),
            (
                r#"{"choices":[{"logprobs":{"content":[{"token":"a"}]},"delta":{"content":"a"}}]}"#,
                true,
            ),
            (
                r#"{"choices":[{"logprobs":{"content":[]},"delta":{}}]}"#,
                false,
            ),
            (r#"{"object":"text","choices":[]}"#, false),
        ] {
            assert_eq!(one(data), chunk(text, None), "{data}");
        }
    }

    #[test]
    fn usage_is_read_where_it_comes() {
        let usage =
            r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8}}"#;
        assert_eq!(one(usage), chunk(false, Some((3, 5))));
        let beside = r#"{"choices":[{"text":"a"}], "usage": {"prompt_tokens": 3}}"#;
        assert_eq!(one(beside), chunk(true, Some((3, 0))));
    }

    #[test]
    fn errors_and_garbage_are_told_apart() {
        let cases = [
            (
                r#"{"error":{"message":"core died","type":"x"}}"#,
                "core died",
            ),
            (r#"{"error": "bare"}"#, "bare"),
            (r#"{"error":{"code":1}}"#, r#"{"error":{"code":1}}"#),
        ];
        for (data, message) in cases {
            assert_eq!(one(data), Event::Error(message.into()));
        }
        assert_eq!(one(r#"{"error":null,"choices":[]}"#), chunk(false, None));
        for data in ["", "hello", r#"{"choices":[}"#, "[1]"] {
            assert!(matches!(one(data), Event::Garbage(_)), "{data}");
        }
        assert_eq!(events(b"<html>\n"), [Event::Garbage("<html>".into())]);
        assert_eq!(events(b": ping\r\nevent: error\nid: 1\nretry: 2\n\r\n"), []);
        assert_eq!(events(b"data: [DONE]\r\n\r\n"), [Event::Done]);
    }

    proptest! {
        /// Keys inside a text are no keys, whatever the text.
        #[test]
        fn text_never_passes_for_a_key(text in ".*|(\"|\\\\|error|usage|:|\\{|content){0,12}") {
            let data = json!({"choices": [{"delta": {"content": text}}]}).to_string();
            prop_assert_eq!(one(&data), chunk(!text.is_empty(), None));
            let data = json!({"note": text, "choices": []}).to_string();
            let whole = ["content", "text", "reasoning", "reasoning_content", "arguments"];
            prop_assume!(!whole.contains(&text.as_str()));
            prop_assert_eq!(one(&data), chunk(false, None));
        }

        /// Events do not depend on where reads cut the stream.
        #[test]
        fn any_cut_gives_the_same_events(cuts in prop::collection::vec(0usize..200, 0..6)) {
            let stream = concat!(
                "data: {\"choices\":[{\"text\":\"a\"}]}\n\n: ping\n\ndata: {\"choices\":[{\"text\":\"\u{e9}\"}]}\r\n\r\n",
                "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n",
            ).as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(stream.len())).collect();
            cuts.sort_unstable();
            let (mut scanner, mut found, mut from) = (Scanner::new(), Vec::new(), 0);
            for cut in cuts.into_iter().chain([stream.len()]) {
                scanner.feed(&stream[from..cut], |event| found.push(event));
                from = cut;
            }
            prop_assert_eq!(found, vec![chunk(true, None), chunk(true, None), chunk(false, Some((1, 2))), Event::Done]);
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            events(&bytes);
        }
    }
}
