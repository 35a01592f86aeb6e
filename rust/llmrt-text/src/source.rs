//! Where a tokenizer is read from, as processes find it in their JSON configuration.

use std::panic::resume_unwind;
use std::path::PathBuf;
use std::thread;

use llmrt_gguf::GgufFile;
use serde::Deserialize;

use crate::tokenizer::{Affixes, Tokenizer, TokenizerError};
use crate::{from_gguf, from_json, heap};

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
    /// Reads the tokenizer. `cache_bytes` bounds what it keeps of texts that it has encoded.
    ///
    /// # Errors
    /// The file cannot be read or describes no tokenizer that llmrt knows.
    pub fn load(&self, cache_bytes: usize) -> Result<Tokenizer, TokenizerError> {
        self.read(|library, affixes| Tokenizer::new(library, affixes, cache_bytes))
    }

    /// Hands the library's tokenizer and the tokens around a text to `take`, on a thread that ends then: what the
    /// library keeps for a thread goes with it, and most of the memory that reading took returns to the system.
    pub(crate) fn read<T: Send>(
        &self,
        take: impl FnOnce(tokenizers::Tokenizer, Affixes) -> T + Send,
    ) -> Result<T, TokenizerError> {
        let read = || {
            let (library, affixes) = match self.kind {
                TokenizerKind::Gguf => from_gguf::build(&GgufFile::open(&self.path)?)?,
                TokenizerKind::Json => (from_json::read(&self.path)?, Affixes::default()),
            };
            Ok(take(library, affixes))
        };
        let taken = thread::scope(|scope| {
            let thread = thread::Builder::new().name("tokenizer-load".to_owned());
            let thread = thread
                .spawn_scoped(scope, read)
                .map_err(TokenizerError::Thread)?;
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        });
        heap::trim();
        taken
    }
}
