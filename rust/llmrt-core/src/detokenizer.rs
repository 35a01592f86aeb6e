//! `run_detokenizer`: the detokenizer's loop, for its Python process.

use llmrt_detokenizer::RunError;
use pyo3::{
    exceptions::{PyOSError, PyRuntimeError, PyValueError},
    prelude::*,
};

/// Serves as a detokenizer until the supervisor calls `shutdown` or sends SIGUSR1.
///
/// Blocks with the GIL released. Raises ValueError if the configuration is refused, OSError if an endpoint cannot be
/// bound, RuntimeError if the tokenizer cannot be read.
#[pyfunction]
pub fn run_detokenizer(py: Python<'_>, config_json: &str) -> PyResult<()> {
    py.detach(|| llmrt_detokenizer::run(config_json))
        .map_err(to_py)
}

fn to_py(error: RunError) -> PyErr {
    let message = error.to_string();
    match error {
        RunError::Config(_) | RunError::Log(_) => PyValueError::new_err(message),
        RunError::Link(_) | RunError::Io(_) => PyOSError::new_err(message),
        RunError::Tokenizer(_) => PyRuntimeError::new_err(message),
    }
}
