//! Tokenizers rebuilt from GGUF metadata (the `tokenizer.ggml.*` keys of ggml's `docs/gguf.md`).

mod byte_level;
mod pre_tokenizer;
mod sentencepiece;
#[cfg(test)]
mod tests;

use llmrt_gguf::{Array, GgufFile};
use tokenizers::{AddedToken, models::bpe::Vocab};

use crate::tokenizer::{Affixes, TokenizerError};

/// The tokenizer that `file` describes, and the tokens it wants around a text.
pub(crate) fn build(file: &GgufFile) -> Result<(tokenizers::Tokenizer, Affixes), TokenizerError> {
    let vocabulary = Vocabulary::read(file)?;
    match file.str("tokenizer.ggml.model") {
        Some("gpt2") => byte_level::build(file, &vocabulary),
        Some("llama") => sentencepiece::build(file, &vocabulary),
        Some(other) => Err(TokenizerError::Kind(other.to_owned())),
        None => Err(TokenizerError::Missing("tokenizer.ggml.model")),
    }
}

/// What a token is for (`enum llama_token_type` of llama.cpp).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenType {
    /// Ordinary text, also the types that are never produced.
    Normal,
    Unknown,
    Control,
    UserDefined,
    Byte,
}

/// Token id -> token and its type.
struct Vocabulary<'a> {
    tokens: &'a [String],
    types: Vec<TokenType>,
}

impl<'a> Vocabulary<'a> {
    fn read(file: &'a GgufFile) -> Result<Self, TokenizerError> {
        let Some(Array::String(tokens)) = file.array("tokenizer.ggml.tokens") else {
            return Err(TokenizerError::Missing("tokenizer.ggml.tokens"));
        };
        if tokens.is_empty() || u32::try_from(tokens.len()).is_err() {
            return Err(TokenizerError::Missing("tokenizer.ggml.tokens"));
        }
        let types: Vec<TokenType> = match file.array("tokenizer.ggml.token_type") {
            Some(Array::I32(types)) => types.iter().map(|id| token_type(i64::from(*id))).collect(),
            Some(Array::U32(types)) => types.iter().map(|id| token_type(i64::from(*id))).collect(),
            Some(_) => return Err(TokenizerError::Missing("tokenizer.ggml.token_type")),
            None => vec![TokenType::Normal; tokens.len()],
        };
        if types.len() != tokens.len() {
            let (types, tokens) = (types.len(), tokens.len());
            let why = format!("{tokens} tokens, but {types} token types");
            return Err(TokenizerError::Inconsistent(why));
        }
        Ok(Self { tokens, types })
    }

    fn ids(&self) -> Vocab {
        let tokens = self.tokens.iter().zip(0..);
        tokens.map(|(token, id)| (token.clone(), id)).collect()
    }

    /// Tokens that are found in the text before anything is split: control tokens, which count as special, and
    /// user-defined ones, which are text.
    fn added(&self) -> Vec<AddedToken> {
        let tokens = self.tokens.iter().zip(&self.types);
        tokens
            .filter_map(|(token, kind)| {
                let special = match kind {
                    TokenType::Control | TokenType::Unknown => true,
                    TokenType::UserDefined => false,
                    TokenType::Normal | TokenType::Byte => return None,
                };
                Some(AddedToken::from(token.as_str(), special).normalized(false))
            })
            .collect()
    }

    /// The token id under `key`, if there is one and it is in the vocabulary.
    fn id(&self, file: &GgufFile, key: &'static str) -> Option<u32> {
        let id = u32::try_from(file.u64(key)?).ok()?;
        ((id as usize) < self.tokens.len()).then_some(id)
    }
}

fn token_type(id: i64) -> TokenType {
    match id {
        2 => TokenType::Unknown,
        3 => TokenType::Control,
        4 => TokenType::UserDefined,
        6 => TokenType::Byte,
        _ => TokenType::Normal,
    }
}

/// BOS and EOS as the file wants them; `default_bos` holds where the file does not say.
fn affixes(
    file: &GgufFile,
    vocabulary: &Vocabulary<'_>,
    default_bos: bool,
) -> Result<Affixes, TokenizerError> {
    let wanted = |flag: &str, default: bool, key: &'static str| {
        if !file.bool(flag).unwrap_or(default) {
            return Ok(None);
        }
        let id = vocabulary.id(file, key);
        id.map(Some).ok_or(TokenizerError::Missing(key))
    };
    Ok(Affixes {
        bos: wanted(
            "tokenizer.ggml.add_bos_token",
            default_bos,
            "tokenizer.ggml.bos_token_id",
        )?,
        eos: wanted(
            "tokenizer.ggml.add_eos_token",
            false,
            "tokenizer.ggml.eos_token_id",
        )?,
    })
}

fn inconsistent(error: tokenizers::Error) -> TokenizerError {
    TokenizerError::Inconsistent(error.to_string())
}
