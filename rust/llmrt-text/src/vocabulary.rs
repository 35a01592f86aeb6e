//! The tokens of a byte-level tokenizer, without the library.

use std::borrow::Cow;
use std::sync::Arc;

use crate::alphabet;
use crate::decode::TokenDecoder;
use crate::decode::table::ByteTable;

/// Ids, bytes and spelling of all tokens.
pub(crate) struct Vocabulary {
    table: Arc<ByteTable>,
    /// Ids of tokens that are spelled as text, ascending. All others are spelled in the byte alphabet.
    added: Vec<u32>,
}

impl Vocabulary {
    /// None when the library spells a token otherwise, or decodes by more than the bytes of tokens.
    pub fn new(library: &tokenizers::Tokenizer) -> Option<Self> {
        let mut added: Vec<u32> = library.get_added_tokens_decoder().into_keys().collect();
        added.sort_unstable();
        let vocabulary = Self {
            table: Arc::new(ByteTable::new(library)?),
            added,
        };
        let same = |(token, id): (String, u32)| vocabulary.token(id).as_deref() == Some(&token);
        library
            .get_vocab(true)
            .into_iter()
            .all(same)
            .then_some(vocabulary)
    }

    /// Text of `ids`: U+FFFD stands where their bytes are invalid.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let bytes: Vec<u8> = ids
            .iter()
            .flat_map(|&id| self.table.get(id, skip_special))
            .copied()
            .collect();
        match String::from_utf8_lossy(&bytes) {
            Cow::Owned(text) => text,
            Cow::Borrowed(_) => String::from_utf8(bytes).unwrap_or_default(),
        }
    }

    /// Decodes incrementally, with the same table.
    pub fn decoder(&self) -> TokenDecoder {
        TokenDecoder::by_table(self.table.clone())
    }

    /// A token as it is spelled.
    pub fn token(&self, id: u32) -> Option<String> {
        let bytes = self.table.get(id, false);
        if bytes.is_empty() {
            return None;
        }
        match self.is_added(id) {
            true => String::from_utf8(bytes.to_vec()).ok(),
            false => Some(bytes.iter().copied().map(alphabet::spell).collect()),
        }
    }

    /// The id of a token as it is spelled. Looks at all tokens.
    pub fn id(&self, token: &str) -> Option<u32> {
        let added = self.added.iter().copied();
        let mut added = added.filter(|&id| self.table.get(id, false) == token.as_bytes());
        let spelled = || {
            let bytes = alphabet::bytes(token).filter(|bytes| !bytes.is_empty())?;
            (0..self.table.len() as u32)
                .find(|&id| self.table.get(id, false) == bytes && !self.is_added(id))
        };
        added.next().or_else(spelled)
    }

    fn is_added(&self, id: u32) -> bool {
        self.added.binary_search(&id).is_ok()
    }
}
