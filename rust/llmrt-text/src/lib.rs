//! Text on its way in and out: tokenizer and its threads, incremental decoding, stop strings.

mod alphabet;
pub mod decode;
mod encode;
mod extent;
mod from_gguf;
mod from_json;
mod heap;
pub mod pool;
mod source;
pub mod stop;
mod tokenizer;
mod vocabulary;

pub use source::{TokenizerKind, TokenizerSource};
pub use tokenizer::{Tokenizer, TokenizerError};
