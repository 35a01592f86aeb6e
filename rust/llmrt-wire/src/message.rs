//! The envelope: kinds, encoding, decoding and what can go wrong.

use std::io::{self, Write};

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::check::FrameError;
use crate::control::{Call, Credit, Dead, Heartbeat, Hello, Ready, Reply};
use crate::frame::{TextFrame, TokenFrame};
use crate::request::{Abort, Ended, Request, Submit};

/// Why bytes are not a message.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// Not msgpack, truncated, or of another shape than the kind asks.
    #[error("malformed message of kind {kind}: {reason}")]
    Malformed { kind: u8, reason: String },
    /// The bytes do not begin with an array whose head is a kind.
    #[error("not an llmrt message: {0}")]
    NotAMessage(String),
    /// A kind that this version does not know.
    #[error("unknown message kind {0}")]
    UnknownKind(u8),
    /// Readable, but not the bytes that [`Message::encode`] makes of it.
    #[error("message of kind {kind} is not in its canonical form")]
    NotCanonical { kind: u8 },
    /// Columns that do not fit together, see [`FrameError`].
    #[error("message of kind {kind}: {reason}")]
    Inconsistent { kind: u8, reason: FrameError },
    /// Bytes behind the end of the message.
    #[error("message of kind {kind} has {extra} bytes behind its end")]
    TrailingBytes { kind: u8, extra: usize },
}

/// First element of a message: its kind, checked when read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag<const KIND: u8>;

impl<const KIND: u8> Serialize for Tag<KIND> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(KIND)
    }
}

impl<'de, const KIND: u8> Deserialize<'de> for Tag<KIND> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u8::deserialize(deserializer)? {
            kind if kind == KIND => Ok(Self),
            kind => Err(D::Error::custom(format!(
                "kind {kind} where {KIND} was expected"
            ))),
        }
    }
}

macro_rules! messages {
    ($($name:ident = $kind:literal),* $(,)?) => {
        /// Message kinds, by their number on the wire.
        #[repr(u8)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind { $($name = $kind),* }

        /// Any message.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Message { $($name($name)),* }

        $(impl From<$name> for Message {
            fn from(message: $name) -> Self {
                Self::$name(message)
            }
        })*

        impl Message {
            fn write(&self, out: &mut impl Write) -> Result<(), rmp_serde::encode::Error> {
                match self { $(Self::$name(message) => rmp_serde::encode::write(out, message)),* }
            }

            fn read(raw: &[u8], kind: u8) -> Result<Self, WireError> {
                match kind {
                    $($kind => unpack(raw, $kind).map(Self::$name),)*
                    _ => Err(WireError::UnknownKind(kind)),
                }
            }

            /// The kind of this message.
            pub fn kind(&self) -> Kind {
                match self { $(Self::$name(_) => Kind::$name),* }
            }
        }
    };
}

messages! {
    Hello = 0,
    Ready = 1,
    Dead = 2,
    Heartbeat = 3,
    Credit = 4,
    Submit = 10,
    Abort = 11,
    Ended = 12,
    Call = 20,
    Reply = 21,
    TokenFrame = 30,
    TextFrame = 31,
}

impl Message {
    /// Reads one ZMQ frame; never panics on foreign bytes.
    ///
    /// A message has exactly one encoding; other spellings of it (a nested map, a wider integer) are refused, so
    /// that both twins always read the same bytes in the same way. Columns of frames fit together.
    pub fn decode(raw: &[u8]) -> Result<Self, WireError> {
        let kind = peek(raw)?;
        let message = Self::read(raw, kind)?;
        match &message {
            Self::TokenFrame(frame) => frame.check(),
            Self::TextFrame(frame) => frame.check(),
            _ => Ok(()),
        }
        .map_err(|reason| WireError::Inconsistent { kind, reason })?;
        let mut rest = Expected(raw);
        match (message.write(&mut rest), rest.0.len()) {
            (Ok(()), 0) => Ok(message),
            (Ok(()), extra) => Err(WireError::TrailingBytes { kind, extra }),
            (Err(_), _) => Err(WireError::NotCanonical { kind }),
        }
    }

    /// The bytes of one ZMQ frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.size_hint());
        // Writing plain data into a Vec has no way to fail.
        let _ = self.write(&mut out);
        out
    }

    /// Bytes that the encoding is likely to fit into.
    fn size_hint(&self) -> usize {
        let mark = size_of::<u64>() * 4;
        SMALL
            + match self {
                Self::TokenFrame(frame) => {
                    frame.opened.len() * SMALL
                        + size_of_val(frame.ids.as_slice())
                        + size_of_val(frame.counts.as_slice())
                        + size_of_val(frame.tokens.as_slice())
                        + (frame.first.len() + frame.finished.len()) * mark
                }
                Self::TextFrame(frame) => {
                    size_of_val(frame.ids.as_slice())
                        + size_of_val(frame.counts.as_slice())
                        + size_of_val(frame.ends.as_slice())
                        + frame.text.len()
                        + (frame.first.len() + frame.finished.len()) * mark
                }
                Self::Submit(submit) => {
                    let prompt = |request: &Request| size_of_val(request.prompt.as_slice());
                    submit
                        .requests
                        .iter()
                        .map(|one| prompt(one) + 2 * SMALL)
                        .sum()
                }
                _ => 0,
            }
    }
}

/// Bytes of a small message.
const SMALL: usize = 128;

/// The rest of what is to be written, byte for byte: a writer that takes nothing else, and keeps nothing.
struct Expected<'r>(&'r [u8]);

impl Write for Expected<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self
            .0
            .strip_prefix(bytes)
            .ok_or(io::ErrorKind::InvalidData)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn peek(raw: &[u8]) -> Result<u8, WireError> {
    let mut head = raw;
    let not = |e: &dyn std::fmt::Display| WireError::NotAMessage(e.to_string());
    if rmp::decode::read_array_len(&mut head).map_err(|e| not(&e))? == 0 {
        return Err(not(&"empty array"));
    }
    rmp::decode::read_int(&mut head).map_err(|e| not(&e))
}

/// Version that a `Hello` or `Ready` speaks, even if this process cannot read the rest of it.
pub fn greeting_version(raw: &[u8]) -> Option<u16> {
    let mut head = raw;
    let fields = rmp::decode::read_array_len(&mut head).ok()?;
    let kind: u8 = rmp::decode::read_int(&mut head).ok()?;
    if fields < 2 || (kind != Kind::Hello as u8 && kind != Kind::Ready as u8) {
        return None;
    }
    rmp::decode::read_int(&mut head).ok()
}

fn unpack<T: DeserializeOwned>(raw: &[u8], kind: u8) -> Result<T, WireError> {
    rmp_serde::from_slice(raw).map_err(|e| WireError::Malformed {
        kind,
        reason: e.to_string(),
    })
}
