//! Text to token ids: cut at special tokens, each piece looked up or encoded by itself.
//!
//! What stands between two special tokens is tokenized independently of all else, so a piece's ids can be kept: the
//! prompts of a chat share their system prompt and history piece by piece. Pieces of byte-level tokenizers are encoded
//! without the library, after both have agreed on a wide corpus; all others, and those that differ, by the library.

mod byte_level;
mod cache;
mod check;
mod cuts;
mod merges;
#[cfg(test)]
mod tests;
mod words;

use std::sync::Arc;

use tokenizers::models::ModelWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;

use byte_level::ByteLevel;
use cache::PieceCache;
use cuts::{Cuts, Part};

/// Encodes texts as the library's tokenizer does.
pub(crate) struct Encoder {
    cuts: Cuts,
    pieces: Pieces,
    /// Tokens around a text whose special tokens are wanted. Unknown where they are not the same around every text.
    around: Option<Around>,
    cache: Option<PieceCache>,
}

enum Pieces {
    ByteLevel(Box<ByteLevel>),
    Library(Arc<tokenizers::Tokenizer>),
}

/// Token ids before and after a text.
#[derive(Debug, Default, PartialEq, Eq)]
struct Around {
    before: Vec<u32>,
    after: Vec<u32>,
}

impl Encoder {
    /// Takes the fast path where it is known to give the library's ids. `cache_bytes` bounds what is kept of pieces.
    pub fn new(library: &Arc<tokenizers::Tokenizer>, cache_bytes: usize) -> Self {
        Self::checked(library, Self::fast(library))
            .unwrap_or_else(|| Self::of_library(library))
            .remembering(cache_bytes)
    }

    /// The fast path, unless it gives other ids than the library.
    fn checked(library: &tokenizers::Tokenizer, fast: Option<Self>) -> Option<Self> {
        let fast = fast?;
        let Some(text) = check::difference(library, &fast) else {
            return Some(fast);
        };
        tracing::warn!(
            ?text,
            "this tokenizer's fast path gives other token ids than the library, which is used instead"
        );
        None
    }

    fn fast(library: &tokenizers::Tokenizer) -> Option<Self> {
        if is_random(library) {
            return None;
        }
        Some(Self {
            cuts: Cuts::at_all_tokens(library)?,
            pieces: Pieces::ByteLevel(Box::new(ByteLevel::new(library)?)),
            around: Some(Around::of(library)?),
            cache: None,
        })
    }

    fn of_library(library: &Arc<tokenizers::Tokenizer>) -> Self {
        let whole = is_random(library) || depends_on_place(library.get_pre_tokenizer());
        Self {
            cuts: match whole {
                true => Cuts::none(),
                false => Cuts::between_pieces(library),
            },
            pieces: Pieces::Library(library.clone()),
            around: Around::of(library),
            cache: None,
        }
    }

    fn remembering(self, bytes: usize) -> Self {
        let random = matches!(&self.pieces, Pieces::Library(library) if is_random(library));
        let cache = (!random).then(|| PieceCache::new(bytes)).flatten();
        Self { cache, ..self }
    }

    /// Whether texts are encoded without the library.
    pub fn is_fast(&self) -> bool {
        matches!(self.pieces, Pieces::ByteLevel(_))
    }

    /// Token ids of `text`; with `add_special`, those that the tokenizer puts around one as well.
    pub fn encode(&self, text: &str, add_special: bool) -> tokenizers::Result<Vec<u32>> {
        let around = match (&self.around, &self.pieces) {
            // The fast path knows what is around.
            (None, Pieces::Library(library)) if add_special => {
                return Ok(library.encode_fast(text, true)?.get_ids().to_vec());
            }
            (Some(around), _) if add_special => around,
            _ => &Around::default(),
        };
        let mut ids = Vec::with_capacity(text.len() / 3 + 8);
        ids.extend_from_slice(&around.before);
        self.cuts.split(text, |part| match part {
            Part::Token(token) => {
                ids.push(token);
                Ok(())
            }
            Part::Piece(piece) => self.piece(piece, &mut ids),
        })?;
        ids.extend_from_slice(&around.after);
        Ok(ids)
    }

    fn piece(&self, piece: &str, ids: &mut Vec<u32>) -> tokenizers::Result<()> {
        match &self.cache {
            Some(cache) => cache.extend(piece, ids, |ids| self.pieces.encode(piece, ids)),
            None => self.pieces.encode(piece, ids),
        }
    }
}

impl Pieces {
    fn encode(&self, piece: &str, ids: &mut Vec<u32>) -> tokenizers::Result<()> {
        match self {
            Self::ByteLevel(byte_level) => byte_level.encode(piece, ids),
            Self::Library(library) => {
                ids.extend_from_slice(library.encode_fast(piece, false)?.get_ids());
            }
        }
        Ok(())
    }
}

impl Around {
    /// What the post-processor puts around a text, found out by trial: any text, one or many tokens, is left as it is.
    fn of(library: &tokenizers::Tokenizer) -> Option<Self> {
        let ids = |text: &str, add_special| {
            let encoding = library.encode_fast(text, add_special).ok()?;
            Some(encoding.get_ids().to_vec())
        };
        let around = |text| {
            let (bare, full) = (ids(text, false)?, ids(text, true)?);
            let mut places = (0..=full.len().checked_sub(bare.len())?)
                .filter(|&at| full[at..].starts_with(&bare));
            let (Some(at), None) = (places.next(), places.next()) else {
                return None;
            };
            Some(Self {
                before: full[..at].to_vec(),
                after: full[at + bare.len()..].to_vec(),
            })
        };
        let first = around("a")?;
        (around("The end, 12.") == Some(Self { ..around("a")? })).then_some(first)
    }
}

/// Whether a text's ids differ from time to time, as in training.
fn is_random(library: &tokenizers::Tokenizer) -> bool {
    let wanted = |share: f64| share > 0.0;
    match library.get_model() {
        ModelWrapper::BPE(model) => model.dropout.map(f64::from).is_some_and(wanted),
        ModelWrapper::Unigram(model) => model.alpha.is_some_and(wanted),
        _ => false,
    }
}

/// Whether a piece is tokenized otherwise at the beginning of a text than after it.
fn depends_on_place(pre_tokenizer: Option<&PreTokenizerWrapper>) -> bool {
    match pre_tokenizer {
        Some(PreTokenizerWrapper::Metaspace(step)) => step.prepend_scheme == PrependScheme::First,
        Some(PreTokenizerWrapper::Sequence(steps)) => steps
            .as_ref()
            .iter()
            .any(|step| depends_on_place(Some(step))),
        _ => false,
    }
}
