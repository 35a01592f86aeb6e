//! How much text a token can stand for: what tells that a text cannot fit before it is tokenized.

use tokenizers::Tokenizer;
use tokenizers::normalizers::NormalizerWrapper;

use crate::decode::longest_bytes;

/// Times that Unicode normalization makes a text shorter at most: NFKC turns letters of 4 bytes (mathematical ones)
/// into 1, NFC three of 3 bytes (Korean ones) into one.
const NORMALIZED: usize = 4;

/// Most bytes of text that one token of `tokenizer` can stand for.
///
/// Exact for vocabularies that cover all bytes. Others can do away with text (unknown words become one token), so that
/// there is no true bound; the longest token is as good as any.
pub(crate) fn bytes_per_token(tokenizer: &Tokenizer) -> usize {
    let longest = longest_bytes(tokenizer).unwrap_or_else(|| {
        let tokens = tokenizer.get_vocab(true).into_keys();
        tokens.map(|token| token.len()).max().unwrap_or(0)
    });
    match tokenizer.get_normalizer() {
        Some(normalizer) if shortens(normalizer) => longest.saturating_mul(NORMALIZED),
        _ => longest,
    }
}

/// Whether normalized text may have fewer bytes. Byte-level alphabets, SentencePiece's sign for a space and its prefix
/// only add some.
fn shortens(normalizer: &NormalizerWrapper) -> bool {
    match normalizer {
        NormalizerWrapper::Sequence(steps) => steps.as_ref().iter().any(shortens),
        NormalizerWrapper::Replace(_)
        | NormalizerWrapper::Prepend(_)
        | NormalizerWrapper::ByteLevel(_) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use tokenizers::AddedToken;
    use tokenizers::decoders::{
        byte_fallback::ByteFallback, fuse::Fuse, sequence::Sequence as Decoders,
    };
    use tokenizers::models::bpe::{BPE, Vocab};
    use tokenizers::normalizers::{NFC, Prepend, Replace, Sequence};
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    use super::*;

    fn tokenizer(tokens: &[&str]) -> Tokenizer {
        let vocab: Vocab = (0..)
            .zip(tokens)
            .map(|(id, token)| ((*token).to_owned(), id))
            .collect();
        let model = BPE::builder().vocab_and_merges(vocab, vec![]);
        Tokenizer::new(model.build().unwrap())
    }

    #[test]
    fn byte_level_tokens_are_as_long_as_their_text() {
        let mut inner = tokenizer(&["a", "ĠĠĠ", "Ġb"]);
        inner.with_decoder(Some(ByteLevel::default()));
        assert_eq!(bytes_per_token(&inner), 3);
        inner
            .add_tokens([AddedToken::from("<|end|>", true)])
            .unwrap();
        assert_eq!(bytes_per_token(&inner), 7);
    }

    #[test]
    fn pieces_are_as_long_as_their_text() {
        let mut inner = tokenizer(&["<0xE4>", "▁ab", "é"]);
        let replace = || Replace::new("▁", " ").unwrap();
        let steps = vec![
            replace().into(),
            ByteFallback::default().into(),
            Fuse::default().into(),
        ];
        inner.with_decoder(Some(Decoders::new(steps)));
        let steps = vec![Prepend::new("▁".into()).into(), replace().into()];
        inner.with_normalizer(Some(Sequence::new(steps))).unwrap();
        assert_eq!(bytes_per_token(&inner), 3);
    }

    #[test]
    fn without_a_table_the_spelling_counts() {
        assert_eq!(bytes_per_token(&tokenizer(&["a", "ébc"])), 4);
        assert_eq!(bytes_per_token(&tokenizer(&[])), 0);
    }

    #[test]
    fn normalized_text_may_have_been_longer() {
        let mut inner = tokenizer(&["ab"]);
        inner.with_decoder(Some(ByteLevel::default()));
        inner.with_normalizer(Some(NFC)).unwrap();
        assert_eq!(bytes_per_token(&inner), 2 * NORMALIZED);
    }
}
