//! The mock engine's loop, for its Python process.

use llmrt_mock::{Faults, RunError};
use pyo3::{
    exceptions::{PyOSError, PyValueError},
    prelude::*,
};

/// Serves as an engine that makes its answers up, until the supervisor sends SIGUSR1.
///
/// Blocks with the GIL released. Raises ValueError if the configuration is refused, OSError if an endpoint cannot be
/// bound.
#[pyfunction]
pub fn run_mock_engine(py: Python<'_>, config_json: &str) -> PyResult<()> {
    py.detach(|| llmrt_mock::run(config_json)).map_err(to_py)
}

/// Raises ValueError if `faults` is no list of faults that a mock engine understands.
#[pyfunction]
pub fn check_mock_faults(faults: &str) -> PyResult<()> {
    match faults.parse::<Faults>() {
        Ok(_) => Ok(()),
        Err(error) => Err(PyValueError::new_err(error.to_string())),
    }
}

fn to_py(error: RunError) -> PyErr {
    let message = error.to_string();
    match error {
        RunError::Config(_) | RunError::Log(_) => PyValueError::new_err(message),
        RunError::Link(_) | RunError::Io(_) => PyOSError::new_err(message),
    }
}
