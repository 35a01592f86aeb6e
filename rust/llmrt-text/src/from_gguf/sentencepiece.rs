//! SentencePiece BPE with byte fallback, as in Llama 2, Mistral and Gemma.

use llmrt_gguf::{Array, GgufFile};
use tokenizers::{
    decoders::{DecoderWrapper, byte_fallback::ByteFallback, fuse::Fuse, sequence, strip::Strip},
    models::bpe::{BPE, Merges, Vocab},
    normalizers::{self, NormalizerWrapper, Prepend, Replace},
};

use super::{TokenType, Vocabulary, affixes, inconsistent};
use crate::tokenizer::{Affixes, CACHED_WORDS, TokenizerError};

/// Stands for a space inside tokens.
const SPACE: &str = "\u{2581}";
/// Longer tokens are not searched for merges, whose cost grows with the square of the length.
const MAX_MERGED_CHARS: usize = 256;

pub(super) fn build(
    file: &GgufFile,
    vocabulary: &Vocabulary<'_>,
) -> Result<(tokenizers::Tokenizer, Affixes), TokenizerError> {
    if file.bool("tokenizer.ggml.remove_extra_whitespaces") == Some(true) {
        return Err(TokenizerError::Kind(
            "llama with remove_extra_whitespaces".into(),
        ));
    }
    let add_space_prefix = file.bool("tokenizer.ggml.add_space_prefix").unwrap_or(true);
    let ids = vocabulary.ids();
    let merges = merges(scores(file, vocabulary)?, vocabulary, &ids);
    let mut model = BPE::builder()
        .vocab_and_merges(ids, merges)
        .fuse_unk(true)
        .byte_fallback(true)
        .cache_capacity(CACHED_WORDS);
    if let Some(unknown) = unknown(file, vocabulary) {
        model = model.unk_token(unknown);
    }
    let affixes = affixes(file, vocabulary, true)?;

    let mut tokenizer = tokenizers::Tokenizer::new(model.build().map_err(inconsistent)?);
    tokenizer
        .with_normalizer(Some(normalizer(add_space_prefix)?))
        .map_err(inconsistent)?;
    tokenizer.with_decoder(Some(decoder(add_space_prefix)?));
    tokenizer
        .add_tokens(vocabulary.added())
        .map_err(inconsistent)?;
    Ok((tokenizer, affixes))
}

fn unknown(file: &GgufFile, vocabulary: &Vocabulary<'_>) -> Option<String> {
    let named = vocabulary.id(file, "tokenizer.ggml.unknown_token_id");
    let id = named.map(|id| id as usize);
    let id = id.or_else(|| {
        vocabulary
            .types
            .iter()
            .position(|kind| *kind == TokenType::Unknown)
    })?;
    Some(vocabulary.tokens[id].clone())
}

fn scores<'a>(
    file: &'a GgufFile,
    vocabulary: &Vocabulary<'_>,
) -> Result<&'a [f32], TokenizerError> {
    match file.array("tokenizer.ggml.scores") {
        Some(Array::F32(scores)) if scores.len() == vocabulary.tokens.len() => Ok(scores),
        _ => Err(TokenizerError::Missing("tokenizer.ggml.scores")),
    }
}

/// SentencePiece joins the neighbours whose union has the best score; BPE applies merges by rank. So every way to cut
/// a token into two tokens is a merge, ranked by the token's score. Ties are ordered as `transformers` does when it
/// converts such a model: longer left part first, then longer right part, then lower ids.
fn merges(scores: &[f32], vocabulary: &Vocabulary<'_>, ids: &Vocab) -> Merges {
    let mut cuts = Vec::new();
    for (id, token) in vocabulary.tokens.iter().enumerate() {
        if matches!(
            vocabulary.types[id],
            TokenType::Normal | TokenType::UserDefined
        ) {
            cuts.extend(cuts_of(token, ids).into_iter().map(|cut| (scores[id], cut)));
        }
    }
    cuts.sort_by(|(score, cut), (other_score, other)| {
        let lengths = |cut: &Cut<'_>| (cut.left_chars, cut.right_chars);
        other_score
            .total_cmp(score)
            .then(lengths(other).cmp(&lengths(cut)))
    });
    cuts.into_iter()
        .map(|(_, cut)| (cut.left.to_owned(), cut.right.to_owned()))
        .collect()
}

struct Cut<'a> {
    left: &'a str,
    right: &'a str,
    left_chars: usize,
    right_chars: usize,
}

/// All ways to cut a token into two tokens, by the ids of the parts.
fn cuts_of<'a>(token: &'a str, ids: &Vocab) -> Vec<Cut<'a>> {
    let chars = token.chars().count();
    if chars > MAX_MERGED_CHARS {
        return Vec::new();
    }
    let boundaries = token.char_indices().skip(1).zip(1..);
    let mut cuts: Vec<(u32, u32, Cut<'a>)> = boundaries
        .filter_map(|((at, _), left_chars)| {
            let (left, right) = token.split_at(at);
            let cut = Cut {
                left,
                right,
                left_chars,
                right_chars: chars - left_chars,
            };
            Some((*ids.get(left)?, *ids.get(right)?, cut))
        })
        .collect();
    cuts.sort_by_key(|(left, right, _)| (*left, *right));
    cuts.into_iter().map(|(_, _, cut)| cut).collect()
}

/// Spaces become U+2581; with a prefix, one more stands before every stretch of text between special tokens.
fn normalizer(add_space_prefix: bool) -> Result<NormalizerWrapper, TokenizerError> {
    let spaces = Replace::new(" ", SPACE).map_err(inconsistent)?.into();
    Ok(if add_space_prefix {
        normalizers::Sequence::new(vec![Prepend::new(SPACE.to_owned()).into(), spaces]).into()
    } else {
        spaces
    })
}

fn decoder(add_space_prefix: bool) -> Result<DecoderWrapper, TokenizerError> {
    let spaces = Replace::new(SPACE, " ").map_err(inconsistent)?.into();
    let mut steps: Vec<DecoderWrapper> =
        vec![spaces, ByteFallback::new().into(), Fuse::new().into()];
    if add_space_prefix {
        steps.push(Strip::new(' ', 1, 0).into());
    }
    Ok(sequence::Sequence::new(steps).into())
}
