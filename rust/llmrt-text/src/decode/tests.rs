//! Decoders of several families, against their tokenizer's own decoding of the whole.

use std::collections::HashMap;

use proptest::prelude::*;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::ctc::CTC;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence;
use tokenizers::decoders::strip::Strip;
use tokenizers::decoders::wordpiece::WordPiece as WordPieceDecoder;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::normalizers::replace::Replace;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::{AddedToken, PreTokenizedString, PreTokenizer as _, Tokenizer};

use super::*;

fn tokenizer(tokens: Vec<String>, decoder: impl Into<DecoderWrapper>) -> Tokenizer {
    let vocab: HashMap<String, u32> = tokens.into_iter().zip(0..).collect();
    let model = WordLevel::builder()
        .vocab(vocab.into_iter().collect())
        .unk_token("?".into())
        .build();
    let mut tokenizer = Tokenizer::new(model.expect("a vocabulary without merges cannot be wrong"));
    tokenizer.with_decoder(Some(decoder));
    let special = [
        AddedToken::from("<|end|>", true),
        AddedToken::from("<é x>", false),
    ];
    tokenizer.add_tokens(special).expect("tokens are new");
    tokenizer
}

/// Every byte, and pieces that are a whole, half or several characters.
fn byte_level() -> Tokenizer {
    let mut tokens: Vec<String> = ByteLevel::alphabet()
        .into_iter()
        .map(String::from)
        .collect();
    tokens.sort_unstable();
    for word in ["hello", " world", "日本", "한국어", "👩‍👩‍👧", " é", "\n\n"] {
        let mut split = PreTokenizedString::from(word);
        ByteLevel::new(false, false, false)
            .pre_tokenize(&mut split)
            .expect("any text has bytes");
        let text = split.get_splits(
            tokenizers::OffsetReferential::Normalized,
            tokenizers::OffsetType::Byte,
        );
        let characters: Vec<char> = text.iter().flat_map(|(part, ..)| part.chars()).collect();
        // The whole, and both halves of it: a half may end or begin inside a character.
        let middle = characters.len() / 2;
        for part in [
            &characters[..],
            &characters[..middle],
            &characters[middle..],
        ] {
            tokens.push(part.iter().collect());
        }
    }
    tokens.sort_unstable();
    tokens.dedup();
    tokenizer(tokens, ByteLevel::default())
}

/// SentencePiece as Llama 2, Mistral and Gemma have it.
fn byte_fallback(strip: bool) -> Tokenizer {
    let words = ["▁", "▁▁", "▁Hello", "▁w", "orld", "é", "語", "▁日"];
    let bytes = (0..=255u8).map(|byte| format!("<0x{byte:02X}>"));
    let mut steps: Vec<DecoderWrapper> = vec![
        Replace::new("▁", " ").expect("a plain pattern").into(),
        ByteFallback::default().into(),
        Fuse::new().into(),
    ];
    if strip {
        steps.push(Strip::new(' ', 1, 0).into());
    }
    tokenizer(
        words.map(String::from).into_iter().chain(bytes).collect(),
        Sequence::new(steps),
    )
}

fn stream(decoder: &TokenDecoder, tail: &[u32], tokens: &[u32], skip_special: bool) -> String {
    let mut decoding = decoder.start(tail, skip_special);
    let mut text = String::new();
    for &token in tokens {
        decoder.push(&mut decoding, token, &mut text);
    }
    decoder.finish(&mut decoding, &mut text);
    text
}

fn ids(size: usize) -> impl Strategy<Value = Vec<u32>> {
    let size = size as u32;
    prop::collection::vec(
        prop_oneof![30 => 0..size, 1 => size..size + 9, 1 => Just(u32::MAX)],
        0..60,
    )
}

#[test]
fn byte_level_streams_what_the_whole_decodes_to() {
    let tokenizer = Arc::new(byte_level());
    let decoder = TokenDecoder::new(tokenizer.clone());
    assert!(decoder.is_table());
    proptest!(ProptestConfig::with_cases(1000), |(ids in ids(tokenizer.get_vocab_size(true)), skip: bool)| {
        let whole = tokenizer.decode(&ids, skip).expect("byte-level decoding takes any tokens");
        prop_assert_eq!(stream(&decoder, &[], &ids, skip), whole);
    });
}

#[test]
fn byte_fallback_streams_valid_text_as_the_whole_decodes() {
    for strip in [false, true] {
        let tokenizer = Arc::new(byte_fallback(strip));
        let decoder = TokenDecoder::new(tokenizer.clone());
        assert!(decoder.is_table());
        // Characters as single bytes between words: valid as a whole.
        let character = prop_oneof![Just('日'), Just('é'), Just('😀'), Just('\n'), Just(' ')];
        let part = prop_oneof![
            (0u32..8).prop_map(|word| vec![word]),
            character.prop_map(|c| c
                .to_string()
                .bytes()
                .map(|byte| 8 + u32::from(byte))
                .collect()),
        ];
        proptest!(|(parts in prop::collection::vec(part, 0..20))| {
            let ids = parts.concat();
            let whole = tokenizer.decode(&ids, true).expect("tokens are known");
            prop_assert_eq!(stream(&decoder, &[], &ids, true), whole);
        });
        proptest!(|(ids in ids(tokenizer.get_vocab_size(true)))| {
            // Broken bytes: as `from_utf8_lossy` has them, with nothing else lost.
            let bytes: Vec<u8> = ids.iter().flat_map(|&id| match id {
                8..=263 => vec![(id - 8) as u8],
                _ => tokenizer.decode(&[0, id], true).unwrap_or_default().into_bytes()
                    .split_off(usize::from(!strip)),
            }).collect();
            let whole = String::from_utf8_lossy(&bytes);
            let whole = if strip { whole.strip_prefix(' ').unwrap_or(&whole) } else { &whole };
            prop_assert_eq!(stream(&decoder, &[], &ids, true), whole);
        });
    }
}

#[test]
fn a_continued_text_keeps_its_first_space() {
    let tokenizer = byte_fallback(true);
    let hello = tokenizer.token_to_id("▁Hello").expect("a known token");
    let end = tokenizer.token_to_id("<|end|>").expect("a known token");
    let decoder = TokenDecoder::new(Arc::new(tokenizer));
    assert_eq!(stream(&decoder, &[], &[hello, hello], true), "Hello Hello");
    assert_eq!(stream(&decoder, &[hello, end], &[hello], true), " Hello");
    assert_eq!(stream(&decoder, &[end], &[hello], true), "Hello");
    assert_eq!(stream(&decoder, &[end], &[hello], false), " Hello");
}

#[test]
fn a_window_streams_what_the_whole_decodes_to() {
    let words = ["he", "##llo", "don", "'", "t", ".", "a", "▁x", "▁", "y▁"]
        .map(String::from)
        .to_vec();
    let decoders: [DecoderWrapper; 3] = [
        WordPieceDecoder::default().into(),
        Metaspace::new('▁', PrependScheme::Always, true).into(),
        CTC::new("<pad>".into(), "|".into(), false).into(),
    ];
    for decoder in decoders {
        let tokenizer = Arc::new(tokenizer(words.clone(), decoder));
        let decoder = TokenDecoder::new(tokenizer.clone());
        assert!(!decoder.is_table());
        proptest!(|(ids in ids(tokenizer.get_vocab_size(true)), skip: bool)| {
            let whole = tokenizer.decode(&ids, skip).expect("tokens are known");
            prop_assert_eq!(stream(&decoder, &[], &ids, skip), whole);
        });
    }
}

/// A decoder without a table whose earlier text turns into U+FFFD while a character is unfinished.
fn shrinking() -> (TokenDecoder, impl Fn(u8) -> u32) {
    let bytes = (0..=255u8).map(|byte| format!("<0x{byte:02X}>"));
    let steps = vec![
        Fuse::new().into(),
        Replace::new("▁", " ").expect("a plain pattern").into(),
    ];
    let chain = [vec![ByteFallback::default().into()], steps].concat();
    let tokenizer = tokenizer(
        ["a".into(), "▁b".into()].into_iter().chain(bytes).collect(),
        Sequence::new(chain),
    );
    (TokenDecoder::new(Arc::new(tokenizer)), |byte| {
        2 + u32::from(byte)
    })
}

#[test]
fn a_window_goes_on_when_earlier_text_shrinks() {
    let (decoder, byte) = shrinking();
    assert!(!decoder.is_table());
    let mut tokens: Vec<u32> = "日本語".bytes().map(&byte).collect();
    assert_eq!(stream(&decoder, &[], &tokens, true), "日本語");
    tokens.extend([byte(0xE6), 1, 0]);
    assert_eq!(stream(&decoder, &[], &tokens, true), "日本語\u{FFFD} ba");
    tokens.extend("語".bytes().map(&byte));
    assert_eq!(stream(&decoder, &[], &tokens, true), "日本語\u{FFFD} ba語");
}

#[test]
fn characters_that_never_complete_cost_no_memory() {
    let tokenizer = byte_level();
    let lead = tokenizer.token_to_id("ð").expect("the byte F0");
    let table = TokenDecoder::new(Arc::new(tokenizer));
    let (window, byte) = shrinking();
    for (decoder, token) in [(&table, lead), (&window, byte(0xF0))] {
        let mut decoding = decoder.start(&[], true);
        let mut text = String::new();
        for _ in 0..32_768 {
            decoder.push(&mut decoding, token, &mut text);
            if let Progress::Window(state) = &decoding.progress {
                assert!(state.len() <= 8);
            }
        }
        decoder.finish(&mut decoding, &mut text);
        assert_eq!(
            text.chars()
                .filter(|&c| c == char::REPLACEMENT_CHARACTER)
                .count(),
            32_768
        );
    }
}

#[test]
fn a_token_alone_has_its_exact_bytes() {
    let tokenizer = byte_level();
    let lead = tokenizer.token_to_id("ð").expect("the byte F0");
    let table = TokenDecoder::new(Arc::new(tokenizer));
    assert_eq!(*table.bytes(lead), [0xF0]);
    assert!(table.bytes(u32::MAX).is_empty());
    let (window, _) = shrinking();
    assert_eq!(*window.bytes(0), *b"a");
    assert_eq!(*window.bytes(1), *b" b", "the space of a word stays");
}
