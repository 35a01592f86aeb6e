//! The events of a streamed answer.
//!
//! What all chunks of an answer share is serialised once. A chunk then costs a few copies and the
//! escaping of its text, and allocates nothing when the buffer has room.

use bytes::BytesMut;
use serde::Serialize;

use super::Endpoint;
use super::options::Streaming;
use super::response::{Envelope, Finish, StopReason, Usage, to_bytes};
use super::telling::Parts;

/// Ends every stream.
const DONE: &[u8] = b"data: [DONE]\n\n";
/// How each byte is escaped in a JSON string: 0 not at all, `u` in hexadecimal, else by this letter.
const ESCAPES: [u8; 256] = escapes();

/// One of an answer's choices, as far as its chunks depend on what was written before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    index: u32,
    opened: bool,
    finished: bool,
}

impl Choice {
    /// The choice with this number, before its first chunk.
    pub const fn new(index: u32) -> Self {
        Self {
            index,
            opened: false,
            finished: false,
        }
    }

    /// Whether its last chunk was written.
    pub const fn is_finished(&self) -> bool {
        self.finished
    }
}

/// Writes the events of one answer, for any number of choices.
#[derive(Clone, Debug)]
pub struct ChunkWriter {
    endpoint: Endpoint,
    streaming: Streaming,
    /// `data: {...,"choices":[`, with the members that all chunks share.
    head: Box<[u8]>,
}

impl ChunkWriter {
    /// A writer for the answer that `envelope` names; `streaming` as the client asked.
    pub fn new(endpoint: Endpoint, envelope: &Envelope, streaming: Streaming) -> Self {
        let object = match endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completions => "text_completion",
        };
        let mut head = BytesMut::new();
        put(&mut head, "data: {\"id\":\"");
        put_escaped(&mut head, envelope.id);
        put(&mut head, "\",\"object\":\"");
        put(&mut head, object);
        put(&mut head, "\",\"created\":");
        put(&mut head, &envelope.created.to_string());
        put(&mut head, ",\"model\":\"");
        put_escaped(&mut head, envelope.model);
        put(&mut head, "\",\"choices\":[");
        Self {
            endpoint,
            streaming,
            head: head[..].into(),
        }
    }

    /// Appends a chunk with `text`; nothing when there is none, or the choice has finished.
    pub fn text(&self, out: &mut BytesMut, choice: &mut Choice, text: &str, usage: Usage) {
        if !text.is_empty() && !choice.finished {
            self.chunk(out, choice, text, None, None, usage);
        }
    }

    /// Appends a chunk with `text` and what is told beside it; nothing when the choice has finished.
    pub fn told(
        &self,
        out: &mut BytesMut,
        choice: &mut Choice,
        text: &str,
        parts: &Parts,
        usage: Usage,
    ) {
        if !choice.finished {
            self.chunk(out, choice, text, Some(parts), None, usage);
        }
    }

    /// Appends the choice's last chunk, which carries what is left to tell; a second call appends nothing.
    pub fn finish(
        &self,
        out: &mut BytesMut,
        choice: &mut Choice,
        parts: Option<&Parts>,
        finish: &Finish,
        usage: Usage,
    ) {
        if !choice.finished {
            self.chunk(out, choice, "", parts, Some(finish), usage);
            choice.finished = true;
        }
    }

    /// Appends the end of the answer: the usage, if asked for, and `[DONE]`.
    pub fn end(&self, out: &mut BytesMut, usage: Usage) {
        if self.streaming.include_usage {
            out.extend_from_slice(&self.head);
            put(out, "],\"usage\":");
            out.extend_from_slice(&to_bytes(&usage));
            put(out, "}\n\n");
        }
        Self::done(out);
    }

    /// Appends `[DONE]` alone, as after an error.
    pub fn done(out: &mut BytesMut) {
        out.extend_from_slice(DONE);
    }

    fn chunk(
        &self,
        out: &mut BytesMut,
        choice: &mut Choice,
        text: &str,
        parts: Option<&Parts>,
        finish: Option<&Finish>,
        usage: Usage,
    ) {
        // Room for a chunk without escapes, so that the copies below seldom grow the buffer one by one.
        out.reserve(self.head.len() + text.len() + 160);
        out.extend_from_slice(&self.head);
        put(out, "{\"index\":");
        put_number(out, choice.index);
        match self.endpoint {
            Endpoint::Chat => {
                put_delta(out, !choice.opened, text, finish.is_some());
                choice.opened = true;
            }
            Endpoint::Completions => {
                put(out, ",\"text\":\"");
                put_escaped(out, parts.map_or("", Parts::before));
                put_escaped(out, text);
                put(out, "\"");
            }
        }
        match parts {
            None => {
                put_finish(out, finish);
                put(out, "}]");
            }
            Some(parts) => self.put_parts(out, parts, finish),
        }
        self.put_usage(out, usage);
    }

    /// Appends the rest of a choice, and what stands beside the choices.
    fn put_parts(&self, out: &mut BytesMut, parts: &Parts, finish: Option<&Finish>) {
        put_member(out, "logprobs", &parts.logprobs);
        put_finish_reason(out, finish);
        if parts.token_ids.is_some() {
            put_member(out, "token_ids", &parts.token_ids);
        }
        let of_chat = self.endpoint == Endpoint::Chat;
        if of_chat {
            put(out, "}]");
        }
        if parts.prompt_token_ids.is_some() {
            put_member(out, "prompt_token_ids", &parts.prompt_token_ids);
        }
        if parts.prompt_logprobs.is_some() {
            put_member(out, "prompt_logprobs", &parts.prompt_logprobs);
        }
        if !of_chat {
            put(out, "}]");
        }
    }

    fn put_usage(&self, out: &mut BytesMut, usage: Usage) {
        let Streaming {
            include_usage,
            continuous_usage,
            ..
        } = self.streaming;
        if !include_usage {
            put(out, "}\n\n");
        } else if !continuous_usage {
            put(out, ",\"usage\":null}\n\n");
        } else {
            put_member(out, "usage", &usage);
            put(out, "}\n\n");
        }
    }
}

/// Appends `,"delta":{...}`: the role in a choice's first chunk, the text where it stands for something.
fn put_delta(out: &mut BytesMut, first: bool, text: &str, last: bool) {
    if first {
        put(out, ",\"delta\":{\"role\":\"assistant\",\"content\":\"");
    } else if last && text.is_empty() {
        return put(out, ",\"delta\":{}");
    } else {
        put(out, ",\"delta\":{\"content\":\"");
    }
    put_escaped(out, text);
    put(out, "\"}");
}

/// Appends no logprobs and how the choice ended, if it has.
fn put_finish(out: &mut BytesMut, finish: Option<&Finish>) {
    match finish {
        None => put(out, ",\"logprobs\":null,\"finish_reason\":null"),
        finish => {
            put(out, ",\"logprobs\":null");
            put_finish_reason(out, finish);
        }
    }
}

fn put_finish_reason(out: &mut BytesMut, finish: Option<&Finish>) {
    let Some(finish) = finish else {
        return put(out, ",\"finish_reason\":null");
    };
    put(out, ",\"finish_reason\":\"");
    put(out, finish.name());
    put(out, "\",\"stop_reason\":");
    match finish.stop {
        StopReason::None => put(out, "null"),
        StopReason::Token(token) => put_number(out, token),
        StopReason::Text(text) => {
            put(out, "\"");
            put_escaped(out, text);
            put(out, "\"");
        }
    }
}

/// Appends `,"name":value`.
fn put_member(out: &mut BytesMut, name: &str, value: &impl Serialize) {
    put(out, ",\"");
    put(out, name);
    put(out, "\":");
    out.extend_from_slice(&to_bytes(value));
}

fn put(out: &mut BytesMut, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

fn put_number(out: &mut BytesMut, mut number: u32) {
    let mut digits = [0; 10];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return out.extend_from_slice(&digits[start..]);
        }
    }
}

/// Appends `text` as it stands inside a JSON string.
fn put_escaped(out: &mut BytesMut, text: &str) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let bytes = text.as_bytes();
    let mut copied = 0;
    for (index, &byte) in bytes.iter().enumerate() {
        let escape = ESCAPES[usize::from(byte)];
        if escape == 0 {
            continue;
        }
        out.extend_from_slice(&bytes[copied..index]);
        copied = index + 1;
        if escape == b'u' {
            let (high, low) = (HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]);
            out.extend_from_slice(&[b'\\', b'u', b'0', b'0', high, low]);
        } else {
            out.extend_from_slice(&[b'\\', escape]);
        }
    }
    out.extend_from_slice(&bytes[copied..]);
}

const fn escapes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut control = 0;
    while control < 0x20 {
        table[control] = b'u';
        control += 1;
    }
    table[b'\n' as usize] = b'n';
    table[b'\r' as usize] = b'r';
    table[b'\t' as usize] = b't';
    table[b'"' as usize] = b'"';
    table[b'\\' as usize] = b'\\';
    table
}
