//! Byte-level BPE (GPT-2, Llama 3, Qwen, Mistral Nemo, SmolLM2 and their like) from a piece of text to its token ids.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;

use serde::Deserialize;
use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::NormalizerWrapper;
use unicode_normalization_alignments::{UnicodeNormalization, is_nfc};

use super::merges::{Merge, Merges, NONE, Scratch};
use super::words::Splitter;
use crate::alphabet;

/// A normalizer, words and merges.
pub(super) struct ByteLevel {
    nfc: bool,
    splitter: Splitter,
    merges: Merges,
}

/// Longer pieces give the memory of their words back.
const KEPT: usize = 1 << 16;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl ByteLevel {
    /// None where a step of the tokenizer is not known here.
    pub fn new(library: &tokenizers::Tokenizer) -> Option<Self> {
        let nfc = match library.get_normalizer() {
            None => false,
            Some(NormalizerWrapper::NFC(_)) => true,
            Some(NormalizerWrapper::Sequence(steps)) if steps.as_ref().is_empty() => false,
            Some(_) => return None,
        };
        let ModelWrapper::BPE(model) = library.get_model() else {
            return None;
        };
        Some(Self {
            nfc,
            splitter: Splitter::new(library.get_pre_tokenizer()?)?,
            merges: merges(model)?,
        })
    }

    #[cfg(test)]
    pub fn forget_a_merge(&mut self) {
        self.merges.pairs.retain(|_, merge| merge.rank != 0);
    }

    /// Appends the ids of a text without added tokens.
    pub fn encode(&self, piece: &str, ids: &mut Vec<u32>) {
        let text = match self.nfc && !piece.is_ascii() && !is_nfc(piece) {
            true => Cow::Owned(piece.nfc().map(|(character, _)| character).collect()),
            false => Cow::Borrowed(piece),
        };
        SCRATCH.with_borrow_mut(|scratch| {
            self.splitter.split(&text, &mut |word| {
                self.merges.encode(word.as_bytes(), scratch, ids);
            });
            // A word of a megabyte is not followed by many more.
            if piece.len() > KEPT {
                *scratch = Scratch::default();
            }
        });
    }
}

/// What the library does not give away but in its file format.
#[derive(Deserialize)]
struct Model<'a> {
    #[serde(borrow)]
    merges: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

fn merges(model: &BPE) -> Option<Merges> {
    let empty = |affix: &Option<String>| affix.as_ref().is_none_or(String::is_empty);
    let plain = empty(&model.continuing_subword_prefix)
        && empty(&model.end_of_word_suffix)
        && model.unk_token.is_none()
        && !model.byte_fallback;
    if !plain {
        return None;
    }
    let vocab = model.get_vocab();
    let json = serde_json::to_vec(model).ok()?;
    let file: Model<'_> = serde_json::from_slice(&json).ok()?;

    let mut bytes = [NONE; 256];
    for (byte, id) in bytes.iter_mut().enumerate() {
        let spelled = alphabet::spell(byte as u8).to_string();
        *id = vocab.get(&spelled).copied().unwrap_or(NONE);
    }
    let mut pairs = HashMap::with_capacity_and_hasher(file.merges.len(), Default::default());
    for (rank, (left, right)) in (0..).zip(&file.merges) {
        let id = |token: &str| vocab.get(token).copied();
        let token = id(&format!("{left}{right}"))?;
        pairs.insert((id(left)?, id(right)?), Merge { rank, token });
    }
    let words = vocab.iter().filter(|_| model.ignore_merges);
    let whole = words.filter_map(|(token, id)| Some((alphabet::bytes(token)?.into(), *id)));
    Some(Merges {
        bytes,
        pairs,
        whole: whole.collect(),
    })
}
