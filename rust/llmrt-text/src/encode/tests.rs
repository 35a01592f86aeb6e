//! The fast path and the pieces give the library's ids, for any text and any kind of added tokens.

use std::sync::Arc;

use proptest::prelude::*;
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::models::unigram::Unigram;
use tokenizers::normalizers::{NFC, NormalizerWrapper, Prepend, Sequence as Normalizers};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, SplitDelimiterBehavior, Tokenizer};

use super::*;
use crate::alphabet;

const CACHE: usize = 1 << 20;

/// Every byte, and merges of common pairs, of which some compete.
fn model() -> BPE {
    let mut vocab: Vocab = (0..=255_u8)
        .map(|byte| (alphabet::spell(byte).to_string(), u32::from(byte)))
        .collect();
    // Byte 1 has no token: it is dropped.
    vocab.remove(&alphabet::spell(1).to_string());
    let mut merges = Merges::new();
    let pairs = "a b,ab c,b c,a bc,Ġ a,Ġ ab,Ġ t,h e,Ġt he,a a,aa aa,aaaa aaaa,1 2,Ċ Ċ,Ġ Ġ,ĠĠ ĠĠ,Ã ©,' s,c ab,e Ġ";
    for pair in pairs.split(',') {
        let (left, right) = pair.split_once(' ').unwrap();
        let id = vocab.len() as u32 + 1;
        vocab.entry(format!("{left}{right}")).or_insert(id);
        merges.push((left.to_owned(), right.to_owned()));
    }
    BPE::builder()
        .vocab_and_merges(vocab, merges)
        .build()
        .unwrap()
}

fn pattern(words: &str) -> PreTokenizerWrapper {
    let expression = SplitPattern::Regex(format!(r"{words}|\s+(?!\S)|\s+"));
    let split = Split::new(expression, SplitDelimiterBehavior::Isolated, false).unwrap();
    Sequence::new(vec![
        split.into(),
        ByteLevel::new(false, true, false).into(),
    ])
    .into()
}

/// GPT-2's, SmolLM2's, and all expressions that are known.
fn pre_tokenizers() -> Vec<PreTokenizerWrapper> {
    let gpt2 = || PreTokenizerWrapper::from(ByteLevel::new(false, true, true));
    let digits = Digits::new(true).into();
    let mut all = vec![gpt2(), Sequence::new(vec![digits, gpt2()]).into()];
    all.extend(words::KNOWN.map(pattern));
    all
}

fn library(pre_tokenizer: PreTokenizerWrapper, added: &[AddedToken]) -> Arc<Tokenizer> {
    let mut library = Tokenizer::new(model());
    library.with_pre_tokenizer(Some(pre_tokenizer));
    library.add_tokens(added.iter().cloned()).unwrap();
    Arc::new(library)
}

fn token(content: &str) -> AddedToken {
    AddedToken::from(content, true).normalized(false)
}

fn assert_equal(library: &Tokenizer, encoder: &Encoder, text: &str) {
    for add_special in [false, true] {
        let expected = library.encode_fast(text, add_special).unwrap();
        // The second time from the cache.
        for _ in 0..2 {
            let ids = encoder.encode(text, add_special).unwrap();
            assert_eq!(ids, expected.get_ids(), "{text:?}");
        }
    }
}

/// All characters of the first plane but the insides of long runs of one kind (Chinese, Korean, private ones), and a part
/// of those beyond.
fn characters() -> Vec<char> {
    let ranges = [
        0..0x3410,
        0x4DB0..0x4E10,
        0x9FF0..0xAC10,
        0xD790..0xE010,
        0xF8F0..0x1_0000,
    ];
    let sampled = (0x1_0000..0x11_0000).step_by(101);
    ranges
        .into_iter()
        .flatten()
        .chain(sampled)
        .filter_map(char::from_u32)
        .collect()
}

#[test]
fn every_character_falls_into_the_same_words() {
    let characters = characters();
    for pre_tokenizer in pre_tokenizers() {
        let library = library(pre_tokenizer, &[]);
        let encoder = Encoder::new(&library, 0);
        assert!(encoder.is_fast());
        for block in characters.chunks(256) {
            let text: String = block
                .iter()
                .flat_map(|&c| ['a', c, 'b', ' ', c, '1', c, ' ', ' '])
                .collect();
            let expected = library.encode_fast(text.as_str(), false).unwrap();
            assert_eq!(
                encoder.encode(&text, false).unwrap(),
                expected.get_ids(),
                "{block:?}"
            );
        }
    }
}

#[test]
fn words_without_end_are_quick_and_right() {
    let library = library(ByteLevel::new(false, true, true).into(), &[]);
    let encoder = Encoder::new(&library, 0);
    for unit in ["a", "abc", " ", "cab", "\n", "é"] {
        for times in [1, 30, 47, 48, 49, 200, 1000] {
            assert_equal(&library, &encoder, &unit.repeat(times));
        }
    }
    let begin = std::time::Instant::now();
    encoder.encode(&"a".repeat(1 << 20), false).unwrap();
    // Quadratic time would be hours.
    assert!(begin.elapsed().as_secs() < 60);
}

#[test]
fn a_fast_path_that_differs_is_not_taken() {
    let library = library(
        ByteLevel::new(false, true, true).into(),
        &[token("<|end|>")],
    );
    assert!(Encoder::checked(&library, Encoder::fast(&library)).is_some());
    let mut broken = Encoder::fast(&library).unwrap();
    if let Pieces::ByteLevel(byte_level) = &mut broken.pieces {
        byte_level.forget_a_merge();
    }
    assert!(Encoder::checked(&library, Some(broken)).is_none());
    let mut deaf = Encoder::fast(&library).unwrap();
    deaf.cuts = Cuts::none();
    assert!(Encoder::checked(&library, Some(deaf)).is_none());
}

#[test]
fn what_is_not_known_is_left_to_the_library() {
    let gpt2 = || PreTokenizerWrapper::from(ByteLevel::new(false, true, true));
    let spaced = PreTokenizerWrapper::from(ByteLevel::new(true, true, true));
    let unknown = pattern(r"\w+|[^\w\s]+");
    for pre_tokenizer in [spaced, unknown] {
        let library = library(pre_tokenizer, &[]);
        let encoder = Encoder::new(&library, CACHE);
        assert!(!encoder.is_fast());
        assert_equal(&library, &encoder, "the abc, 12 ab");
    }
    let swallows = library(gpt2(), &[token("<x>").rstrip(true)]);
    assert!(!Encoder::new(&swallows, CACHE).is_fast());
    let mut prepends = Tokenizer::new(model());
    prepends.with_pre_tokenizer(Some(gpt2()));
    prepends
        .with_normalizer(Some(Prepend::new("_".into())))
        .unwrap();
    assert!(!Encoder::new(&Arc::new(prepends), CACHE).is_fast());
}

#[test]
fn what_is_put_around_a_text_is_found_out() {
    let mut library = Tokenizer::new(model());
    library.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    library.add_tokens([token("<s>"), token("</s>")]).unwrap();
    let ids: Vec<_> = ["<s>", "</s>"]
        .map(|t| (t, library.token_to_id(t).unwrap()))
        .into();
    let template = |single: &str| {
        let mut template = TemplateProcessing::builder();
        template.try_single(single).unwrap();
        template.special_tokens(ids.clone()).build().unwrap()
    };
    library.with_post_processor(Some(template("<s> $A </s>")));
    let library = Arc::new(library);
    let encoder = Encoder::new(&library, CACHE);
    assert!(encoder.is_fast());
    for text in ["", "a", "<s>", "the abc</s>"] {
        assert_equal(&library, &encoder, text);
    }
}

#[test]
fn random_models_are_never_remembered() {
    let mut dropout = model();
    dropout.dropout = Some(0.5);
    let mut library = Tokenizer::new(dropout);
    library.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    let encoder = Encoder::new(&Arc::new(library), CACHE);
    assert!(!encoder.is_fast() && encoder.cache.is_none());
}

/// Added tokens of every kind: some begin or end with a letter or a space, some are parts of others.
const CONTENTS: [&str; 8] = ["<|a|>", "<|a|><", "|>", "ab", " ab ", "a", "<s>", "c<"];

fn texts() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        2 => prop::sample::select(&CONTENTS[..]).prop_map(str::to_owned),
        3 => "[abc ]{0,6}",
        1 => "[ \n\ta1'<|>é]{0,5}",
        1 => "\\PC{0,4}",
    ];
    prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

fn added() -> impl Strategy<Value = Vec<AddedToken>> {
    let flags = prop::array::uniform5(prop::bool::weighted(0.2));
    let kind = |(content, [single, left, right, normalized, plain]): (&str, [bool; 5])| {
        AddedToken::from(content, !plain)
            .single_word(single)
            .lstrip(left)
            .rstrip(right)
            .normalized(normalized)
    };
    let token = (prop::sample::select(&CONTENTS[..]), flags).prop_map(kind);
    prop::collection::vec(token, 0..5)
}

proptest! {
    #[test]
    fn pieces_and_cache_change_nothing(
        added in added(),
        pre_tokenizer in prop::sample::select(pre_tokenizers()),
        nfc in any::<bool>(),
        texts in prop::collection::vec(texts(), 1..6),
    ) {
        let mut inner = Tokenizer::new(model());
        inner.with_pre_tokenizer(Some(pre_tokenizer));
        inner.with_normalizer(nfc.then_some(NFC)).unwrap();
        inner.add_tokens(added).unwrap();
        let library = Arc::new(inner);
        let encoder = Encoder::new(&library, CACHE);
        for text in texts {
            // Pieces long enough to be kept as well.
            assert_equal(&library, &encoder, &text);
            assert_equal(&library, &encoder, &format!("{text}{}{text}", " abc".repeat(20)));
        }
    }

    #[test]
    fn pieces_of_the_librarys_change_nothing(
        added in added(),
        scheme in prop::sample::select(&[PrependScheme::First, PrependScheme::Always, PrependScheme::Never][..]),
        prepend in any::<bool>(),
        texts in prop::collection::vec(texts(), 1..6),
    ) {
        let pieces = ["<unk>", "▁", "a", "b", "c", "ab", "▁a", "▁ab", "<", "|", ">", "bc"];
        let vocab = pieces.iter().zip(1..).map(|(piece, rank)| ((*piece).to_owned(), -f64::from(rank)));
        let model = Unigram::from(vocab.collect(), Some(0), false).unwrap();
        let mut inner = Tokenizer::new(model);
        inner.with_pre_tokenizer(Some(Metaspace::new('▁', scheme, true)));
        let steps: Vec<NormalizerWrapper> = vec![Prepend::new("b".into()).into()];
        inner.with_normalizer(prepend.then(|| Normalizers::new(steps))).unwrap();
        inner.add_tokens(added).unwrap();
        let library = Arc::new(inner);
        let encoder = Encoder::new(&library, CACHE);
        prop_assert!(!encoder.is_fast());
        for text in texts {
            assert_equal(&library, &encoder, &text);
            assert_equal(&library, &encoder, &format!("{text}{}{text}", " abc".repeat(20)));
        }
    }
}
