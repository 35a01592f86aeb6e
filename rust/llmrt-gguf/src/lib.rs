//! Memory-mapped reader of GGUF files: metadata, the tensor table, and dequantisation.
//!
//! The format is described in ggml's `docs/gguf.md`; versions 2 and 3, little-endian, are read. A file comes from
//! strangers, so every count, length and offset in it is checked against the bytes that are really there before
//! anything is allocated or read.
//!
//! ```no_run
//! # fn main() -> Result<(), llmrt_gguf::GgufError> {
//! let file = llmrt_gguf::GgufFile::open("model.gguf".as_ref())?;
//! let architecture = file.str("general.architecture");
//! let weights = file.read("token_embd.weight", llmrt_gguf::Dtype::F16)?;
//! # Ok(()) }
//! ```

mod cursor;
mod dequant;
mod error;
mod file;
mod ggml_type;
mod parse;
mod value;

pub use dequant::Dtype;
pub use error::GgufError;
pub use file::GgufFile;
pub use ggml_type::GgmlType;
pub use parse::TensorInfo;
pub use value::{Array, Value};
