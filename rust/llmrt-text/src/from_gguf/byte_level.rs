//! GPT-2 style byte-level BPE.

use llmrt_gguf::{Array, GgufFile};
use tokenizers::{
    decoders::byte_level::ByteLevel,
    models::bpe::{BPE, Merges, Vocab},
};

use super::{Vocabulary, affixes, inconsistent, pre_tokenizer::Recipe};
use crate::tokenizer::{Affixes, CACHED_WORDS, TokenizerError};

pub(super) fn build(
    file: &GgufFile,
    vocabulary: &Vocabulary<'_>,
) -> Result<(tokenizers::Tokenizer, Affixes), TokenizerError> {
    let recipe = Recipe::find(file.str("tokenizer.ggml.pre"))?;
    let ids = vocabulary.ids();
    let merges = merges(file, &ids)?;
    let model = BPE::builder()
        .vocab_and_merges(ids, merges)
        .ignore_merges(recipe.ignore_merges)
        .cache_capacity(CACHED_WORDS)
        .build()
        .map_err(inconsistent)?;
    let affixes = affixes(file, vocabulary, recipe.add_bos)?;

    let mut tokenizer = tokenizers::Tokenizer::new(model);
    tokenizer
        .with_normalizer(recipe.normalizer)
        .map_err(inconsistent)?;
    tokenizer.with_pre_tokenizer(Some(recipe.pre_tokenizer));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    tokenizer
        .add_tokens(vocabulary.added())
        .map_err(inconsistent)?;
    Ok((tokenizer, affixes))
}

/// Merges in the order of their rank, each "left right". Both parts and their union must be tokens.
fn merges(file: &GgufFile, ids: &Vocab) -> Result<Merges, TokenizerError> {
    let Some(Array::String(merges)) = file.array("tokenizer.ggml.merges") else {
        return Err(TokenizerError::Missing("tokenizer.ggml.merges"));
    };
    let mut union = String::new();
    let mut parse = |merge: &String| {
        let (left, right) = merge.split_once(' ')?;
        union.clear();
        union.push_str(left);
        union.push_str(right);
        let known = [left, right, &union]
            .into_iter()
            .all(|token| ids.contains_key(token));
        known.then(|| (left.to_owned(), right.to_owned()))
    };
    let parsed = merges.iter().map(|merge| {
        parse(merge).ok_or_else(|| {
            TokenizerError::Inconsistent(format!("the merge {merge:?} is not of known tokens"))
        })
    });
    parsed.collect()
}
