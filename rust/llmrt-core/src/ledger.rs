//! `Ledger`: what is open and used up over all entry workers, kept in the supervisor's process.

use std::sync::{Mutex, PoisonError};

use llmrt_entry::{Keeper, KeeperError};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

/// Counts for all entry workers what their requests hold and use, on a thread of its own.
#[pyclass(frozen, module = "llmrt._core")]
pub struct Ledger(Mutex<Option<Keeper>>);

#[pymethods]
impl Ledger {
    /// Starts to count; workers can connect when it returns.
    ///
    /// Raises ValueError if the configuration or its file of keys is refused, OSError if the endpoint cannot be bound.
    #[new]
    fn new(py: Python<'_>, config_json: &str) -> PyResult<Self> {
        let started = py.detach(|| Keeper::start(config_json));
        let keeper = started.map_err(|error| match error {
            KeeperError::Link(_) | KeeperError::Thread(_) | KeeperError::Lost => {
                PyOSError::new_err(error.to_string())
            }
            _ => PyValueError::new_err(error.to_string()),
        })?;
        Ok(Self(Mutex::new(Some(keeper))))
    }

    /// Reads the file of keys again; one that cannot be used is logged and changes nothing.
    fn reload(&self) {
        let keeper = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(keeper) = &*keeper {
            keeper.reload();
        }
    }

    /// Ends it; a second call does nothing.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            let keeper = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
            drop(keeper);
        });
    }
}
