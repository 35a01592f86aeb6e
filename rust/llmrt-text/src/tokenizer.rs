use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use llmrt_gguf::{GgufError, GgufFile};
use thiserror::Error;

use crate::decode::TokenDecoder;
use crate::encode::Encoder;
use crate::vocabulary::Vocabulary;
use crate::{extent, from_gguf, from_json};

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

    #[error("cannot start a thread to read the tokenizer: {0}")]
    Thread(std::io::Error),
}

/// Text to token ids and back. Cloning is cheap and shares the vocabulary; all methods may run on many threads at once.
#[derive(Clone)]
pub struct Tokenizer(Arc<Shared>);

struct Shared {
    encoder: Encoder,
    tokens: Tokens,
    affixes: Affixes,
    /// Ids of special tokens, sorted.
    special: Vec<u32>,
    vocab_size: u32,
    bytes_per_token: usize,
    decoder: OnceLock<TokenDecoder>,
}

/// What decodes. The library takes some ten times the memory and is only kept where it is needed.
enum Tokens {
    Table(Vocabulary),
    Library(Arc<tokenizers::Tokenizer>),
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
        Ok(Self::new(from_json::read(path)?, Affixes::default(), 0))
    }

    /// Loads the bytes of a `tokenizer.json`; see [`Tokenizer::from_file`].
    pub fn from_json(json: &[u8]) -> Result<Self, TokenizerError> {
        Ok(Self::new(from_json::parse(json)?, Affixes::default(), 0))
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
        let (library, affixes) = from_gguf::build(file)?;
        Ok(Self::new(library, affixes, 0))
    }

    pub(crate) fn new(
        library: tokenizers::Tokenizer,
        affixes: Affixes,
        cache_bytes: usize,
    ) -> Self {
        let added = library.get_added_tokens_decoder();
        let mut special: Vec<u32> = added
            .iter()
            .filter(|(_, token)| token.special)
            .map(|(id, _)| *id)
            .collect();
        special.sort_unstable();
        let highest = library.get_vocab(true).into_values().max();
        let bytes_per_token = extent::bytes_per_token(&library);
        let library = Arc::new(library);
        let encoder = Encoder::new(&library, cache_bytes);
        let table = encoder.is_fast().then(|| Vocabulary::new(&library));
        Self(Arc::new(Shared {
            encoder,
            tokens: match table.flatten() {
                Some(table) => Tokens::Table(table),
                None => Tokens::Library(library),
            },
            affixes,
            special,
            vocab_size: highest.map_or(0, |id| id.saturating_add(1)),
            bytes_per_token,
            decoder: OnceLock::new(),
        }))
    }

    /// Token ids of `text`. The text of a special token in it becomes that token: this is how chat templates write them.
    ///
    /// With `add_special`, adds the tokens that the model expects around a plain text (mostly a BOS, often none).
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let Shared {
            encoder, affixes, ..
        } = &*self.0;
        let mut ids = encoder
            .encode(text, add_special)
            .map_err(|error| TokenizerError::Encode(error.to_string()))?;
        if add_special {
            ids.splice(0..0, affixes.bos);
            ids.extend(affixes.eos);
        }
        Ok(ids)
    }

    /// Text of `ids`; ids outside the vocabulary have none. With `skip_special`, special tokens have none either.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TokenizerError> {
        match &self.0.tokens {
            Tokens::Table(table) => Ok(table.decode(ids, skip_special)),
            Tokens::Library(library) => library
                .decode(ids, skip_special)
                .map_err(|error| TokenizerError::Decode(error.to_string())),
        }
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
        match &self.0.tokens {
            Tokens::Table(table) => table.id(token),
            Tokens::Library(library) => library.token_to_id(token),
        }
    }

    /// The token as the vocabulary spells it: for byte-level tokenizers in their alphabet, not as text.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        match &self.0.tokens {
            Tokens::Table(table) => table.token(id),
            Tokens::Library(library) => library.id_to_token(id),
        }
    }

    /// Whether `id` is a special token (BOS, end of turn and the like), which is left out of text by default.
    pub fn is_special(&self, id: u32) -> bool {
        self.0.special.binary_search(&id).is_ok()
    }

    /// Ids of all special tokens, in ascending order.
    pub fn special_ids(&self) -> &[u32] {
        &self.0.special
    }

    /// The incremental decoder; made when it is first asked for, which can take some ten milliseconds.
    pub fn decoder(&self) -> &TokenDecoder {
        self.0.decoder.get_or_init(|| match &self.0.tokens {
            Tokens::Table(vocabulary) => vocabulary.decoder(),
            Tokens::Library(library) => TokenDecoder::new(library.clone()),
        })
    }

    /// Whether the incremental decoder is there already.
    pub fn has_decoder(&self) -> bool {
        self.0.decoder.get().is_some()
    }

    /// Whether texts are encoded without the library, whose ids the fast path was seen to give.
    pub fn is_fast(&self) -> bool {
        self.0.encoder.is_fast()
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .finish_non_exhaustive()
    }
}
