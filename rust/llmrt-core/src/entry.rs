//! `Entry`: an entry worker embedded in a Python process.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use llmrt_entry::{EntryConfig, EntryWorker, StartError};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// An entry worker: HTTP server, tokenizer threads and router, on threads of its own.
#[pyclass(frozen, module = "llmrt._core")]
pub struct Entry {
    worker: Mutex<State>,
}

enum State {
    Configured(Box<EntryConfig>),
    Started(EntryWorker),
    Failed,
}

#[pymethods]
impl Entry {
    /// Raises ValueError if the configuration is refused.
    #[new]
    fn new(config_json: &str) -> PyResult<Self> {
        let config = EntryConfig::from_json(config_json)
            .map_err(|e| PyValueError::new_err(e.to_string()))?;
        Ok(Self {
            worker: Mutex::new(State::Configured(Box::new(config))),
        })
    }

    /// Loads the tokenizer, opens the links and serves; returns when connections are accepted.
    ///
    /// Raises OSError if a socket cannot be used, RuntimeError if the tokenizer or chat template cannot, or if the
    /// worker was started before.
    fn start(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            let mut state = self.state();
            match std::mem::replace(&mut *state, State::Failed) {
                State::Configured(config) => {
                    *state = State::Started(EntryWorker::start(*config).map_err(to_py)?);
                    Ok(())
                }
                other => {
                    *state = other;
                    Err(PyRuntimeError::new_err("an entry worker starts once"))
                }
            }
        })
    }

    /// Takes no new requests, gives open ones `timeout` seconds, then ends. Returns at once; a second call replaces
    /// the timeout of the first.
    fn shutdown(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let timeout = Duration::try_from_secs_f64(timeout)
            .map_err(|e| PyValueError::new_err(e.to_string()))?;
        py.detach(|| {
            if let State::Started(worker) = &*self.state() {
                worker.shutdown(timeout);
            }
        });
        Ok(())
    }

    /// Waits until the worker has ended; False when `timeout` seconds passed before.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let timeout = timeout
            .map(Duration::try_from_secs_f64)
            .transpose()
            .map_err(|e| PyValueError::new_err(e.to_string()))?;
        Ok(py.detach(|| match &*self.state() {
            State::Started(worker) => worker.wait(timeout),
            _ => true,
        }))
    }

    /// Ends all open requests with an error that gives `reason`; new ones get 503 until a core answers again.
    fn core_down(&self, py: Python<'_>, reason: &str) {
        py.detach(|| {
            if let State::Started(worker) = &*self.state() {
                worker.core_down(reason);
            }
        });
    }
}

impl Entry {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.worker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn to_py(error: StartError) -> PyErr {
    let message = error.to_string();
    match error {
        StartError::Config(_) | StartError::Log(_) => PyValueError::new_err(message),
        StartError::Listen(_) | StartError::Link(_) | StartError::Thread(_) => {
            PyOSError::new_err(message)
        }
        _ => PyRuntimeError::new_err(message),
    }
}
