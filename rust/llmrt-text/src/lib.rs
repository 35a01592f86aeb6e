//! Text on its way in and out: tokenizer and its threads, incremental decoding, stop strings.

pub mod decode;
pub mod stop;
