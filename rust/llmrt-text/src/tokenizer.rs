use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use llmrt_gguf::{GgufError, GgufFile};
use thiserror::Error;

use crate::{decode::TokenDecoder, extent, from_gguf};

/// Why a tokenizer could not be loaded or used.
#[derive(Debug, Error)]
pub enum TokenizerError {
    #[error(transparent)]
    Gguf(#[from] GgufError),

    #[error("cannot read {}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },

    #[error("this tokenizer.json cannot be used: {0}")]
    File(String),

    #[error("the GGUF file has no usable {0}; convert the model again or give its tokenizer.json")]
    Missing(&'static str),

    #[error(
        "the GGUF file's tokenizer is of kind {0:?}, which is not supported; give the model's tokenizer.json"
    )]
    Kind(String),

    #[error(
        "the GGUF file's pre-tokenizer {0:?} is not supported; give the model's tokenizer.json"
    )]
    PreTokenizer(String),

    #[error("the tokenizer of the GGUF file is inconsistent: {0}")]
    Inconsistent(String),

    #[error("cannot encode this text: {0}")]
    Encode(String),

    #[error("cannot decode these tokens: {0}")]
    Decode(String),
}

/// Text to token ids and back. Cloning is cheap and shares the vocabulary; all methods may run on many threads at once.
#[derive(Clone)]
pub struct Tokenizer(Arc<Shared>);

struct Shared {
    inner: Arc<tokenizers::Tokenizer>,
    affixes: Affixes,
    /// Ids of special tokens, sorted.
    special: Vec<u32>,
    vocab_size: u32,
    bytes_per_token: usize,
    decoder: OnceLock<TokenDecoder>,
}

/// Words whose tokens each thread remembers. A word of 255 letters takes some 8 KiB: 16 MiB per thread at most, where
/// the library's 10,000 would be 80 MiB that no thread ever gives back.
pub(crate) const CACHED_WORDS: usize = 2048;

/// Tokens to put around a text whose special tokens are wanted, beyond those of the tokenizer's own post-processor.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Affixes {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
}

impl Tokenizer {
    /// Loads a `tokenizer.json`. Truncation and padding in it are switched off: a prompt is never cut silently.
    pub fn from_file(path: &Path) -> Result<Self, TokenizerError> {
        let bytes = std::fs::read(path).map_err(|source| TokenizerError::Io {
            path: path.to_owned(),
            source,
        })?;
        Self::from_json(&bytes)
    }

    /// Loads the bytes of a `tokenizer.json`; see [`Tokenizer::from_file`].
    pub fn from_json(json: &[u8]) -> Result<Self, TokenizerError> {
        let file_error = |error: tokenizers::Error| TokenizerError::File(error.to_string());
        let mut inner = tokenizers::Tokenizer::from_bytes(json).map_err(file_error)?;
        inner.with_truncation(None).map_err(file_error)?;
        inner.with_padding(None);
        // The library hands no model out to be changed.
        let mut model = inner.get_model().clone();
        model.resize_cache(CACHED_WORDS);
        inner.with_model(model);
        Ok(Self::new(inner, Affixes::default()))
    }

    /// Rebuilds the tokenizer that the metadata of a GGUF file describes.
    ///
    /// # Errors
    /// The file cannot be read, or its kind of tokenizer or pre-tokenizer is not supported.
    pub fn from_gguf(path: &Path) -> Result<Self, TokenizerError> {
        Self::from_gguf_file(&GgufFile::open(path)?)
    }

    /// As [`Tokenizer::from_gguf`], for a file that is open already.
    pub fn from_gguf_file(file: &GgufFile) -> Result<Self, TokenizerError> {
        let (inner, affixes) = from_gguf::build(file)?;
        Ok(Self::new(inner, affixes))
    }

    fn new(inner: tokenizers::Tokenizer, affixes: Affixes) -> Self {
        let added = inner.get_added_tokens_decoder();
        let mut special: Vec<u32> = added
            .iter()
            .filter(|(_, token)| token.special)
            .map(|(id, _)| *id)
            .collect();
        special.sort_unstable();
        let highest = inner.get_vocab(true).into_values().max();
        Self(Arc::new(Shared {
            bytes_per_token: extent::bytes_per_token(&inner),
            inner: Arc::new(inner),
            affixes,
            special,
            vocab_size: highest.map_or(0, |id| id.saturating_add(1)),
            decoder: OnceLock::new(),
        }))
    }

    /// Token ids of `text`. The text of a special token in it becomes that token: this is how chat templates write them.
    ///
    /// With `add_special`, adds the tokens that the model expects around a plain text (mostly a BOS, often none).
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let Shared { inner, affixes, .. } = &*self.0;
        let encoding = inner
            .encode_fast(text, add_special)
            .map_err(|error| TokenizerError::Encode(error.to_string()))?;
        if !add_special || *affixes == Affixes::default() {
            return Ok(encoding.get_ids().to_vec());
        }
        let ids = encoding.get_ids().iter().copied();
        Ok(affixes
            .bos
            .into_iter()
            .chain(ids)
            .chain(affixes.eos)
            .collect())
    }

    /// Text of `ids`; ids outside the vocabulary have none. With `skip_special`, special tokens have none either.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TokenizerError> {
        let text = self.0.inner.decode(ids, skip_special);
        text.map_err(|error| TokenizerError::Decode(error.to_string()))
    }

    /// Most bytes of text that `tokens` tokens can stand for: a longer text has more tokens, whatever it says.
    pub fn most_bytes(&self, tokens: u32) -> usize {
        self.0.bytes_per_token.saturating_mul(tokens as usize)
    }

    /// One more than the highest token id.
    pub fn vocab_size(&self) -> u32 {
        self.0.vocab_size
    }

    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.0.inner.token_to_id(token)
    }

    /// The token as the vocabulary spells it: for byte-level tokenizers in their alphabet, not as text.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.0.inner.id_to_token(id)
    }

    /// Whether `id` is a special token (BOS, end of turn and the like), which is left out of text by default.
    pub fn is_special(&self, id: u32) -> bool {
        self.0.special.binary_search(&id).is_ok()
    }

    /// Ids of all special tokens, in ascending order.
    pub fn special_ids(&self) -> &[u32] {
        &self.0.special
    }

    /// The incremental decoder; made when it is first asked for, which takes some ten milliseconds.
    pub fn decoder(&self) -> &TokenDecoder {
        let inner = &self.0.inner;
        self.0
            .decoder
            .get_or_init(|| TokenDecoder::new(inner.clone()))
    }

    /// Whether the incremental decoder is there already.
    pub fn has_decoder(&self) -> bool {
        self.0.decoder.get().is_some()
    }

    /// The underlying tokenizer, for the incremental decoder.
    pub fn inner(&self) -> &Arc<tokenizers::Tokenizer> {
        &self.0.inner
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .finish_non_exhaustive()
    }
}
