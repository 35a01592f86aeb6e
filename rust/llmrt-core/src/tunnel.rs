//! `join_core` and `run_gateway`: the two ends of the tunnel between hosts.

use std::sync::{Mutex, PoisonError};

use llmrt_tunnel::gateway::{self, RunError};
use llmrt_tunnel::{JoinError, Joined, Target};
use pyo3::exceptions::{
    PyConnectionError, PyOSError, PyPermissionError, PyRuntimeError, PyValueError,
};
use pyo3::prelude::*;

/// A core on another host that has let this process in; for one `Entry`.
#[pyclass(frozen, module = "llmrt._core")]
pub struct CoreSession {
    joined: Mutex<Option<Joined>>,
    slot: u16,
    core: String,
}

#[pymethods]
impl CoreSession {
    /// Number of this process among the entry workers of the core.
    #[getter]
    fn slot(&self) -> u16 {
        self.slot
    }

    /// What the core says of itself, a JSON object.
    #[getter]
    fn core(&self) -> &str {
        &self.core
    }
}

impl CoreSession {
    pub fn take(&self) -> PyResult<Joined> {
        let mut joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        (joined.take()).ok_or_else(|| PyValueError::new_err("this session was used before"))
    }
}

/// Joins a core on another host; one attempt, which takes some seconds at most. `target_json` is an object of `address`
/// (`HOST:PORT`), `secret` and `fingerprint`.
///
/// Raises ConnectionError if the core cannot be reached now, PermissionError if it has another secret, RuntimeError if it
/// refuses this process, ValueError if the object cannot be read.
#[pyfunction]
pub fn join_core(py: Python<'_>, target_json: &str) -> PyResult<CoreSession> {
    let target: Target =
        serde_json::from_str(target_json).map_err(|e| PyValueError::new_err(e.to_string()))?;
    let joined = py.detach(|| target.join_now()).map_err(|error| {
        let message = error.to_string();
        match error {
            JoinError::Unreachable { .. } => PyConnectionError::new_err(message),
            JoinError::Secret { .. } => PyPermissionError::new_err(message),
            JoinError::Stranger { .. } | JoinError::Refused { .. } => {
                PyRuntimeError::new_err(message)
            }
        }
    })?;
    let welcome = joined.welcome();
    Ok(CoreSession {
        slot: welcome.slot,
        core: welcome.core.to_string(),
        joined: Mutex::new(Some(joined)),
    })
}

/// Lets entry nodes of other hosts in until the supervisor calls `shutdown` or sends SIGUSR1.
///
/// Blocks with the GIL released. Raises ValueError if the configuration is refused, OSError if an endpoint cannot be
/// bound.
#[pyfunction]
pub fn run_gateway(py: Python<'_>, config_json: &str) -> PyResult<()> {
    py.detach(|| gateway::run(config_json)).map_err(|error| {
        let message = error.to_string();
        match error {
            RunError::Config(_) | RunError::Log(_) => PyValueError::new_err(message),
            RunError::Link(_) | RunError::Io(_) => PyOSError::new_err(message),
        }
    })
}
