//! Tokenizers from a Hugging Face `tokenizer.json`.

use std::path::Path;

use crate::tokenizer::{CACHED_WORDS, TokenizerError};

/// Reads the file at `path`; see [`parse`].
pub(crate) fn read(path: &Path) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let bytes = std::fs::read(path).map_err(|source| TokenizerError::Io {
        path: path.to_owned(),
        source,
    })?;
    parse(&bytes)
}

/// Truncation and padding are switched off: a prompt is never cut silently.
pub(crate) fn parse(json: &[u8]) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let file_error = |error: tokenizers::Error| TokenizerError::File(error.to_string());
    let mut library = tokenizers::Tokenizer::from_bytes(json).map_err(file_error)?;
    library.with_truncation(None).map_err(file_error)?;
    library.with_padding(None);
    // The library hands no model out to be changed.
    let mut model = library.get_model().clone();
    model.resize_cache(CACHED_WORDS);
    library.with_model(model);
    Ok(library)
}
