//! Incremental decoding: token ids in, text out, a token at a time.
//!
//! Tokenizers whose tokens stand for fixed bytes (byte-level BPE, SentencePiece with byte fallback) are decoded through
//! a table in constant time and memory per token; all others through a bounded window over their own decoder.

pub(crate) mod table;
mod utf8;
mod window;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;

use tokenizers::Tokenizer;

use table::ByteTable;
use utf8::Utf8Stream;
use window::{Window, WindowState};

use crate::{TokenizerError, TokenizerSource};

/// Bytes of the longest token; none where tokens do not stand for fixed bytes.
pub(crate) fn longest_bytes(tokenizer: &Tokenizer) -> Option<usize> {
    ByteTable::new(tokenizer).map(|table| table.longest())
}

/// Decodes the tokens of any number of requests; built once per tokenizer.
///
/// For one request, the text of all [`push`](Self::push)es and [`finish`](Self::finish) is the text of all its tokens.
/// By table, that is `String::from_utf8_lossy` over the bytes of all tokens: U+FFFD stands only where bytes are invalid,
/// and it comes as soon as they are known to be. Token ids outside the vocabulary have no text.
pub struct TokenDecoder(Kind);

enum Kind {
    Table(Arc<ByteTable>),
    Window(Window),
}

/// What is known of one request: a part of a character, or a few tokens.
#[derive(Clone, Debug)]
pub struct Decoding {
    skip_special: bool,
    progress: Progress,
}

#[derive(Clone, Debug)]
enum Progress {
    Table {
        held: Utf8Stream,
        /// Spaces still to be taken from the beginning of the text.
        strip: u32,
    },
    Window(WindowState),
}

impl TokenDecoder {
    /// Reads a tokenizer for its decoder alone.
    ///
    /// # Errors
    /// Those of [`TokenizerSource::load`].
    pub fn load(source: &TokenizerSource) -> Result<Self, TokenizerError> {
        source.read(|library, _| Self::new(Arc::new(library)))
    }

    /// Takes the table where the tokenizer's decoder allows one.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        match ByteTable::new(&tokenizer) {
            Some(table) => Self::by_table(Arc::new(table)),
            None => Self(Kind::Window(Window::new(tokenizer))),
        }
    }

    pub(crate) fn by_table(table: Arc<ByteTable>) -> Self {
        Self(Kind::Table(table))
    }

    /// Whether tokens are decoded by table.
    pub fn is_table(&self) -> bool {
        matches!(self.0, Kind::Table(_))
    }

    /// Bytes of one token by itself, special or not; none for ids outside the vocabulary.
    pub fn bytes(&self, token: u32) -> Cow<'_, [u8]> {
        match &self.0 {
            Kind::Table(table) => table.get(token, false).into(),
            Kind::Window(window) => window.alone(token).into_bytes().into(),
        }
    }

    /// Begins a text that continues a prompt; `prompt_tail` is the end of the prompt's tokens.
    ///
    /// With `skip_special`, special tokens have no text.
    pub fn start(&self, prompt_tail: &[u32], skip_special: bool) -> Decoding {
        let progress = match &self.0 {
            Kind::Table(table) => {
                let continues = prompt_tail
                    .iter()
                    .any(|&token| !table.get(token, skip_special).is_empty());
                let strip = if continues { 0 } else { table.strip };
                Progress::Table {
                    held: Utf8Stream::default(),
                    strip,
                }
            }
            Kind::Window(window) => Progress::Window(window.start(prompt_tail, skip_special)),
        };
        Decoding {
            skip_special,
            progress,
        }
    }

    /// Appends the text that `token` completes to `out`: whole characters, often none.
    #[inline]
    pub fn push(&self, decoding: &mut Decoding, token: u32, out: &mut String) {
        let skip_special = decoding.skip_special;
        match (&self.0, &mut decoding.progress) {
            (Kind::Table(table), Progress::Table { held, strip }) => {
                let mut bytes = table.get(token, skip_special);
                while *strip > 0 && !bytes.is_empty() {
                    match bytes.strip_prefix(b" ") {
                        Some(rest) => (bytes, *strip) = (rest, *strip - 1),
                        None => *strip = 0,
                    }
                }
                held.push(bytes, out);
            }
            (Kind::Window(window), Progress::Window(state)) => {
                window.push(state, token, skip_special, out)
            }
            // A text that another kind of decoder began: its tokens mean nothing here.
            _ => {}
        }
    }

    /// Appends what was held back to `out`: no token follows.
    pub fn finish(&self, decoding: &mut Decoding, out: &mut String) {
        match (&self.0, &mut decoding.progress) {
            (_, Progress::Table { held, .. }) => held.finish(out),
            (Kind::Window(window), Progress::Window(state)) => window.finish(state, out),
            _ => {}
        }
    }
}
