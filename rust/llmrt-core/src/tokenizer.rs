//! `Tokenizer`, for Python.

use std::path::PathBuf;

use llmrt_text::TokenizerError;
use pyo3::{
    exceptions::{PyOSError, PyValueError},
    prelude::*,
};

/// Text to token ids and back. All methods release the GIL and may be called from many threads.
#[pyclass(frozen, module = "llmrt._core")]
pub struct Tokenizer {
    tokenizer: llmrt_text::Tokenizer,
}

#[pymethods]
impl Tokenizer {
    /// Rebuilds the tokenizer that a GGUF file describes.
    ///
    /// Raises OSError if the file cannot be read, ValueError if its kind of tokenizer is not supported.
    #[staticmethod]
    fn from_gguf(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let tokenizer = py.detach(|| llmrt_text::Tokenizer::from_gguf(&path));
        Ok(Self {
            tokenizer: tokenizer.map_err(to_py)?,
        })
    }

    /// Loads a `tokenizer.json`; truncation and padding in it are ignored.
    ///
    /// Raises OSError if the file cannot be read, ValueError if it is no tokenizer.
    #[staticmethod]
    fn from_file(py: Python<'_>, tokenizer_json: PathBuf) -> PyResult<Self> {
        let tokenizer = py.detach(|| llmrt_text::Tokenizer::from_file(&tokenizer_json));
        Ok(Self {
            tokenizer: tokenizer.map_err(to_py)?,
        })
    }

    /// Token ids of `text`; the text of a special token in it becomes that token.
    ///
    /// With `add_special_tokens`, adds what the model expects around a plain text (a BOS, often nothing).
    #[pyo3(signature = (text, add_special_tokens = false))]
    fn encode(&self, py: Python<'_>, text: &str, add_special_tokens: bool) -> PyResult<Vec<u32>> {
        py.detach(|| self.tokenizer.encode(text, add_special_tokens))
            .map_err(to_py)
    }

    /// Text of `ids`, without that of special tokens unless asked for. Ids outside the vocabulary have no text.
    #[pyo3(signature = (ids, skip_special_tokens = true))]
    fn decode(&self, py: Python<'_>, ids: Vec<u32>, skip_special_tokens: bool) -> PyResult<String> {
        py.detach(|| self.tokenizer.decode(&ids, skip_special_tokens))
            .map_err(to_py)
    }

    /// One more than the highest token id.
    #[getter]
    fn vocab_size(&self) -> u32 {
        self.tokenizer.vocab_size()
    }

    /// Ids of the special tokens, ascending.
    #[getter]
    fn special_ids(&self) -> Vec<u32> {
        self.tokenizer.special_ids().to_vec()
    }

    /// The id of a token as the vocabulary spells it, or None.
    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// The token with this id as the vocabulary spells it, or None.
    fn id_to_token(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }
}

fn to_py(error: TokenizerError) -> PyErr {
    let message = error.to_string();
    match error {
        TokenizerError::Gguf(error) => crate::gguf::to_py(error),
        TokenizerError::Io { .. } => PyOSError::new_err(message),
        _ => PyValueError::new_err(message),
    }
}
