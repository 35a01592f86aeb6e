use llmrt_gguf::GgufFile;
use proptest::prelude::*;

use crate::{Tokenizer, TokenizerError};

/// Writes the metadata of a GGUF file.
#[derive(Default, Clone)]
struct Metadata {
    count: u64,
    bytes: Vec<u8>,
}

impl Metadata {
    fn text(&mut self, text: &str) {
        self.bytes.extend((text.len() as u64).to_le_bytes());
        self.bytes.extend(text.as_bytes());
    }

    fn key(&mut self, key: &str, kind: u32) {
        self.count += 1;
        self.text(&format!("tokenizer.ggml.{key}"));
        self.bytes.extend(kind.to_le_bytes());
    }

    fn array(&mut self, key: &str, kind: u32, len: usize) {
        self.key(key, 9);
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend((len as u64).to_le_bytes());
    }

    fn str(mut self, key: &str, value: &str) -> Self {
        self.key(key, 8);
        self.text(value);
        self
    }

    fn u32(mut self, key: &str, value: u32) -> Self {
        self.key(key, 4);
        self.bytes.extend(value.to_le_bytes());
        self
    }

    fn bool(mut self, key: &str, value: bool) -> Self {
        self.key(key, 7);
        self.bytes.push(value.into());
        self
    }

    fn strs(mut self, key: &str, values: &[&str]) -> Self {
        self.array(key, 8, values.len());
        values.iter().for_each(|value| self.text(value));
        self
    }

    fn i32s(mut self, key: &str, values: &[i32]) -> Self {
        self.array(key, 5, values.len());
        self.bytes
            .extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self
    }

    fn f32s(mut self, key: &str, values: &[f32]) -> Self {
        self.array(key, 6, values.len());
        self.bytes
            .extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self
    }

    fn load(self) -> Result<Tokenizer, TokenizerError> {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend(0_u64.to_le_bytes());
        file.extend(self.count.to_le_bytes());
        file.extend(self.bytes);
        Tokenizer::from_gguf_file(&GgufFile::from_bytes(file)?)
    }

    fn error(self) -> String {
        match self.load() {
            Ok(_) => "the tokenizer was accepted".into(),
            Err(error) => error.to_string(),
        }
    }
}

/// `<s> </s> a b c ab abc Ġ x`, the merge of `abc` being a word that only whole-word lookup finds.
fn byte_level(pre: &str) -> Metadata {
    Metadata::default()
        .str("model", "gpt2")
        .str("pre", pre)
        .strs(
            "tokens",
            &["<s>", "</s>", "a", "b", "c", "ab", "abc", "Ġ", "<x>"],
        )
        .i32s("token_type", &[3, 3, 1, 1, 1, 1, 1, 1, 4])
        .strs("merges", &["a b"])
        .u32("bos_token_id", 0)
        .u32("eos_token_id", 1)
}

/// `<unk> <s> </s> <0xC3> <0xA9> ▁ a b ab ▁a`; `ab` scores better than `▁a`.
fn sentencepiece() -> Metadata {
    Metadata::default()
        .str("model", "llama")
        .strs(
            "tokens",
            &[
                "<unk>", "<s>", "</s>", "<0xC3>", "<0xA9>", "▁", "a", "b", "ab", "▁a",
            ],
        )
        .i32s("token_type", &[2, 3, 3, 6, 6, 1, 1, 1, 1, 1])
        .f32s("scores", &[0., 0., 0., 0., 0., -9., -7., -8., -1., -2.])
        .u32("bos_token_id", 1)
        .u32("eos_token_id", 2)
}

fn encode(metadata: Metadata, text: &str) -> Vec<u32> {
    metadata.load().unwrap().encode(text, true).unwrap()
}

#[test]
fn the_pre_tokenizer_decides_on_whole_words_and_bos() {
    assert_eq!(encode(byte_level("gpt-2"), "abc"), [5, 4]);
    assert_eq!(encode(byte_level("smollm"), "abc"), [5, 4]);
    assert_eq!(encode(byte_level("llama-bpe"), "abc"), [0, 6]);
    assert_eq!(encode(byte_level("tekken"), "abc"), [0, 6]);
    assert_eq!(encode(byte_level("default"), "ab c"), [5, 7, 4]);
}

#[test]
fn bos_and_eos_follow_the_file() {
    let explicit = |bos, eos| {
        byte_level("llama-bpe")
            .bool("add_bos_token", bos)
            .bool("add_eos_token", eos)
    };
    assert_eq!(encode(explicit(false, false), "a"), [2]);
    assert_eq!(encode(explicit(true, true), "a"), [0, 2, 1]);
    let tokenizer = explicit(true, true).load().unwrap();
    assert_eq!(tokenizer.encode("a", false).unwrap(), [2]);
    let outside = Metadata::default()
        .str("model", "gpt2")
        .str("pre", "llama-bpe")
        .strs("tokens", &["a"])
        .strs("merges", &[])
        .u32("bos_token_id", 1);
    assert!(outside.error().contains("bos_token_id"));
}

#[test]
fn added_tokens_are_found_in_text_and_only_control_tokens_are_special() {
    let tokenizer = byte_level("gpt-2").load().unwrap();
    let ids = tokenizer.encode("<s>a<x>b</s>", false).unwrap();
    assert_eq!(ids, [0, 2, 8, 3, 1]);
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "a<x>b");
    assert_eq!(tokenizer.special_ids(), [0, 1]);
    assert!(tokenizer.is_special(1) && !tokenizer.is_special(8));
    assert_eq!(
        (tokenizer.vocab_size(), tokenizer.token_to_id("ab")),
        (9, Some(5))
    );
    assert_eq!(tokenizer.id_to_token(7).as_deref(), Some("Ġ"));
    assert_eq!(tokenizer.id_to_token(9), None);
}

#[test]
fn sentencepiece_merges_by_score_and_falls_back_to_bytes() {
    let tokenizer = sentencepiece().load().unwrap();
    assert_eq!(tokenizer.encode("ab", true).unwrap(), [1, 5, 8]);
    assert_eq!(tokenizer.encode("a é", false).unwrap(), [9, 5, 3, 4]);
    assert_eq!(tokenizer.decode(&[9, 5, 3, 4], true).unwrap(), "a é");
    assert_eq!(tokenizer.encode("字", false).unwrap(), [5, 0]);
    assert_eq!(tokenizer.special_ids(), [0, 1, 2]);
    let bare = sentencepiece()
        .bool("add_space_prefix", false)
        .load()
        .unwrap();
    assert_eq!(bare.encode("ab a", false).unwrap(), [8, 9]);
    assert_eq!(bare.decode(&[9, 8], true).unwrap(), " aab");
}

#[test]
fn what_cannot_be_rebuilt_says_so() {
    let none = Metadata::default;
    assert!(none().error().contains("tokenizer.ggml.tokens"));
    assert!(
        none()
            .strs("tokens", &[])
            .error()
            .contains("tokenizer.ggml.tokens")
    );
    assert!(
        none()
            .strs("tokens", &["a"])
            .error()
            .contains("tokenizer.ggml.model")
    );
    assert!(
        none()
            .strs("tokens", &["a"])
            .str("model", "t5")
            .error()
            .contains("\"t5\"")
    );
    assert!(byte_level("viking").error().contains("\"viking\""));
    let stripping = sentencepiece().bool("remove_extra_whitespaces", true);
    assert!(stripping.error().contains("remove_extra_whitespaces"));
    let gpt2 = || none().str("model", "gpt2").str("pre", "gpt-2");
    assert!(
        gpt2()
            .strs("tokens", &["a"])
            .error()
            .contains("tokenizer.ggml.merges")
    );
}

#[test]
fn merges_of_unknown_tokens_are_refused() {
    // The union of the two longest tokens is longer than any token.
    for merge in ["aaaa aaaa", "a b", "aaaa", "a  a", ""] {
        let metadata = Metadata::default()
            .str("model", "gpt2")
            .str("pre", "gpt-2")
            .strs("tokens", &["a", "aaaa"])
            .strs("merges", &[merge]);
        assert!(metadata.error().contains(&format!("{merge:?}")), "{merge}");
    }
}

proptest! {
    /// Whatever a file claims, it is refused or gives a tokenizer that works.
    #[test]
    fn no_metadata_panics(
        model in "gpt2|llama",
        pre in "gpt-2|llama-bpe|tekken|qwen2|default",
        tokens in prop::collection::vec("[ab▁ ]{0,3}|<0x6[0-9]>", 0..8),
        types in prop::collection::vec(0..8_i32, 0..8),
        scores in prop::collection::vec(any::<f32>(), 0..8),
        merges in prop::collection::vec("[ab ]{0,4}", 0..3),
        ids in prop::array::uniform3(0..10_u32),
        text in "[ab ▁é<>]{0,12}",
    ) {
        fn strs(values: &[String]) -> Vec<&str> {
            values.iter().map(String::as_str).collect()
        }
        let metadata = Metadata::default()
            .str("model", &model)
            .str("pre", &pre)
            .strs("tokens", &strs(&tokens))
            .strs("merges", &strs(&merges))
            .i32s("token_type", &types.iter().copied().chain([1; 8]).take(tokens.len()).collect::<Vec<_>>())
            .f32s("scores", &scores.iter().copied().chain([0.0; 8]).take(tokens.len()).collect::<Vec<_>>())
            .u32("bos_token_id", ids[0])
            .u32("eos_token_id", ids[1])
            .u32("unknown_token_id", ids[2]);
        if let Ok(tokenizer) = metadata.load()
            && let Ok(ids) = tokenizer.encode(&text, true)
        {
            prop_assert!(ids.iter().all(|id| *id < tokenizer.vocab_size()));
            prop_assert!(tokenizer.decode(&ids, false).is_ok());
        }
    }
}
