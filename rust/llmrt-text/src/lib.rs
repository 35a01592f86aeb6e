//! Text on its way in and out: tokenizer and its threads, incremental decoding, stop strings.

pub mod decode;
mod extent;
mod from_gguf;
pub mod pool;
mod source;
pub mod stop;
mod tokenizer;

pub use source::{TokenizerKind, TokenizerSource};
pub use tokenizer::{Tokenizer, TokenizerError};
