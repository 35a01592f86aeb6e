//! Where a tokenizer is read from, as processes find it in their JSON configuration.

use std::path::PathBuf;

use serde::Deserialize;

use crate::tokenizer::{Tokenizer, TokenizerError};

/// A file and what it is.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerSource {
    pub kind: TokenizerKind,
    pub path: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenizerKind {
    /// Rebuilt from a GGUF file's metadata.
    Gguf,
    /// A Hugging Face `tokenizer.json`.
    Json,
}

impl TokenizerSource {
    /// Reads the tokenizer.
    ///
    /// # Errors
    /// The file cannot be read or describes no tokenizer that llmrt knows.
    pub fn load(&self) -> Result<Tokenizer, TokenizerError> {
        match self.kind {
            TokenizerKind::Gguf => Tokenizer::from_gguf(&self.path),
            TokenizerKind::Json => Tokenizer::from_file(&self.path),
        }
    }
}
