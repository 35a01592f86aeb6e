//! Decoding by table: for tokenizers in which every token stands for fixed bytes.

use tokenizers::decoders::DecoderWrapper;
use tokenizers::normalizers::replace::Replace;
use tokenizers::{Decoder as _, Tokenizer};

use crate::alphabet;

/// Ids above this are not worth a table (a real vocabulary ends far below).
const MAX_IDS: u32 = 1 << 23;

/// The bytes of every token, end to end.
pub struct ByteTable {
    bytes: Vec<u8>,
    /// `ends[id]`: end of the token's bytes, which begin where those of `id - 1` end.
    ends: Vec<u32>,
    special: Vec<bool>,
    /// Spaces that the decoder takes from the beginning of a text.
    pub strip: u32,
}

impl ByteTable {
    /// The table of a tokenizer, or none when its decoder looks beyond one token.
    pub fn new(tokenizer: &Tokenizer) -> Option<Self> {
        let recipe = Recipe::of(tokenizer.get_decoder()?)?;
        let mut tokens = token_bytes(tokenizer, &recipe)?;
        tokens.sort_unstable_by_key(|&(id, _)| id);
        let size = tokens.last()?.0 as usize + 1;

        let mut table = Self {
            bytes: Vec::with_capacity(size * 8),
            ends: Vec::with_capacity(size),
            special: vec![false; size],
            strip: recipe.strip,
        };
        for (id, bytes) in tokens {
            // Ids that no token has stand for nothing.
            table.ends.resize(id as usize, table.bytes.len() as u32);
            table.bytes.extend_from_slice(&bytes);
            table.ends.push(u32::try_from(table.bytes.len()).ok()?);
        }
        for (id, token) in tokenizer.get_added_tokens_decoder() {
            table.special[id as usize] = token.special;
        }
        Some(table)
    }

    /// Bytes of a token; none for ids outside the vocabulary and, if so asked, for special tokens.
    #[inline]
    pub fn get(&self, token: u32, skip_special: bool) -> &[u8] {
        let id = token as usize;
        let Some(&end) = self.ends.get(id) else {
            return &[];
        };
        if skip_special && self.special[id] {
            return &[];
        }
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..end as usize]
    }

    /// Ids that the table has room for: one more than the highest token id.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of the longest token.
    pub fn longest(&self) -> usize {
        let starts = std::iter::once(&0).chain(&self.ends);
        let lengths = self.ends.iter().zip(starts).map(|(end, start)| end - start);
        lengths.max().unwrap_or(0) as usize
    }
}

/// A decoder that works token by token.
struct Recipe {
    /// Tokens are written in GPT-2's alphabet of 256 printable characters, one for each byte.
    byte_level: bool,
    replace: Vec<Replace>,
    /// A token `<0xE4>` stands for that byte (SentencePiece).
    byte_fallback: bool,
    strip: u32,
}

impl Recipe {
    fn of(decoder: &DecoderWrapper) -> Option<Self> {
        let mut recipe = Self {
            byte_level: false,
            replace: Vec::new(),
            byte_fallback: false,
            strip: 0,
        };
        let mut fused = false;
        let steps = match decoder {
            DecoderWrapper::Sequence(sequence) => sequence.get_decoders(),
            single => std::slice::from_ref(single),
        };
        for step in steps {
            match step {
                DecoderWrapper::ByteLevel(_) if steps.len() == 1 => recipe.byte_level = true,
                DecoderWrapper::Replace(step) if !recipe.byte_fallback && !fused => {
                    recipe.replace.push(step.clone())
                }
                DecoderWrapper::ByteFallback(_) if !fused => recipe.byte_fallback = true,
                DecoderWrapper::Fuse(_) => fused = true,
                DecoderWrapper::Strip(step) if fused && step.content == ' ' && step.stop == 0 => {
                    recipe.strip = u32::try_from(step.start).ok()?;
                }
                _ => return None,
            }
        }
        Some(recipe)
    }

    fn bytes(&self, token: String) -> Option<Vec<u8>> {
        if self.byte_level {
            return Some(alphabet::bytes(&token).unwrap_or_else(|| token.into_bytes()));
        }
        let mut parts = vec![token];
        for step in &self.replace {
            parts = step.decode_chain(parts).ok()?;
        }
        let token = parts.concat();
        match fallback_byte(&token) {
            Some(byte) if self.byte_fallback => Some(vec![byte]),
            _ => Some(token.into_bytes()),
        }
    }
}

/// Bytes of each token id. Added tokens are plain text: no alphabet is undone for them.
fn token_bytes(tokenizer: &Tokenizer, recipe: &Recipe) -> Option<Vec<(u32, Vec<u8>)>> {
    let added = tokenizer.get_added_tokens_decoder();
    let mut tokens = Vec::with_capacity(tokenizer.get_vocab_size(true));
    for (token, id) in tokenizer.get_vocab(false) {
        if id > MAX_IDS {
            return None;
        }
        if !added.contains_key(&id) {
            tokens.push((id, recipe.bytes(token)?));
        }
    }
    for (id, token) in added {
        if id > MAX_IDS {
            return None;
        }
        tokens.push((id, token.content.into_bytes()));
    }
    Some(tokens)
}

fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let exact = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if exact {
        u8::from_str_radix(digits, 16).ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fallback_tokens_are_two_hexadecimal_digits() {
        assert_eq!(fallback_byte("<0xE4>"), Some(0xE4));
        for other in ["<0xE>", "<0xE45>", "<0xZZ>", "0xE4", "<0x+4>", "<0xé>"] {
            assert_eq!(fallback_byte(other), None, "{other}");
        }
    }
}
