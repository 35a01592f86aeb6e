use std::path::PathBuf;

use thiserror::Error;

/// Why a GGUF file could not be opened, or a tensor of it not be read.
#[derive(Debug, Error)]
pub enum GgufError {
    #[error("cannot read {}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },

    #[error("not a GGUF file: it does not begin with the bytes \"GGUF\"")]
    Magic,

    #[error("GGUF version {0} is not supported; convert the model again to get version 2 or 3")]
    Version(u32),

    #[error("this GGUF file is big-endian; convert the model again with little-endian byte order")]
    BigEndian,

    #[error(
        "this is part of a GGUF file split in {0}; merge the parts first (llama-gguf-split --merge)"
    )]
    Split(u64),

    #[error("truncated GGUF file: it ends inside {what}, which begins at byte {offset}")]
    Truncated { what: &'static str, offset: usize },

    #[error("invalid GGUF file: {0}")]
    Invalid(String),

    #[error("no tensor named {0:?} in the GGUF file")]
    NoSuchTensor(String),

    #[error(
        "tensor {tensor:?} has type {type_name}, which is not supported; \
         use a file quantised as one of F32, F16, BF16, Q8_0, Q6_K, Q5_K, Q5_1, Q5_0, Q4_K, Q4_1, Q4_0"
    )]
    UnsupportedType { tensor: String, type_name: String },

    #[error("tensor {tensor:?} needs a buffer of {expected} bytes, but got one of {actual}")]
    BufferSize {
        tensor: String,
        expected: usize,
        actual: usize,
    },
}
