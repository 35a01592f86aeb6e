//! What `tokenizer.ggml.pre` stands for: how a text is split into words before byte-level BPE.
//!
//! The names are llama.cpp's (`llama-vocab.cpp`); the expressions are those of the models' own `tokenizer.json`.

use tokenizers::{
    SplitDelimiterBehavior,
    normalizers::{NFC, NormalizerWrapper},
    pre_tokenizers::{
        PreTokenizerWrapper,
        byte_level::ByteLevel,
        digits::Digits,
        sequence::Sequence,
        split::{Split, SplitPattern},
    },
};

use super::inconsistent;
use crate::tokenizer::TokenizerError;

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";

const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// The parts of a byte-level tokenizer that its vocabulary does not tell.
pub(super) struct Recipe {
    pub normalizer: Option<NormalizerWrapper>,
    pub pre_tokenizer: PreTokenizerWrapper,
    /// A word that is a token is taken whole, even if no merges lead to it.
    pub ignore_merges: bool,
    /// Whether a text begins with BOS if the file does not say.
    pub add_bos: bool,
}

impl Recipe {
    pub fn find(name: Option<&str>) -> Result<Self, TokenizerError> {
        match name {
            Some("gpt-2" | "gpt2" | "phi-2" | "mpt" | "olmo" | "jais" | "trillion") => {
                Ok(Self::new(gpt2()))
            }
            Some("smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone") => {
                let digits = Digits::new(true).into();
                Ok(Self::new(Sequence::new(vec![digits, gpt2()]).into()))
            }
            Some("llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "pixtral") => {
                Ok(Self::whole_words(Self::new(split(&[LLAMA3])?)))
            }
            Some("smaug-bpe" | "dbrx") => Ok(Self::new(split(&[LLAMA3])?)),
            Some("tekken") => Ok(Self::whole_words(Self::new(split(&[TEKKEN])?))),
            Some("qwen2") => Ok(Self {
                normalizer: Some(NormalizerWrapper::NFC(NFC)),
                ..Self::new(split(&[QWEN2])?)
            }),
            Some("deepseek-r1-qwen" | "megrez") => Ok(Self::new(split(&[QWEN2])?)),
            Some("default") | None => {
                tracing::warn!(
                    "the GGUF file does not name its pre-tokenizer: token ids may be slightly off"
                );
                let passes = [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"];
                Ok(Self::new(split(&passes)?))
            }
            Some(other) => Err(TokenizerError::PreTokenizer(other.to_owned())),
        }
    }

    fn new(pre_tokenizer: PreTokenizerWrapper) -> Self {
        Self {
            normalizer: None,
            pre_tokenizer,
            ignore_merges: false,
            add_bos: false,
        }
    }

    /// For vocabularies that were made for tiktoken: it looks words up whole, and these models expect a BOS.
    fn whole_words(self) -> Self {
        Self {
            ignore_merges: true,
            add_bos: true,
            ..self
        }
    }
}

/// Splits by GPT-2's own expression, then spells bytes in its alphabet.
fn gpt2() -> PreTokenizerWrapper {
    ByteLevel::new(false, true, true).into()
}

/// Splits by each expression in turn, then spells bytes in GPT-2's alphabet.
fn split(expressions: &[&str]) -> Result<PreTokenizerWrapper, TokenizerError> {
    let mut steps = Vec::new();
    for expression in expressions {
        let pattern = SplitPattern::Regex((*expression).to_owned());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
        steps.push(split.map_err(inconsistent)?.into());
    }
    steps.push(ByteLevel::new(false, true, false).into());
    Ok(Sequence::new(steps).into())
}
