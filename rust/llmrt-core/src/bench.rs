//! `run_bench`: the load generator, for `llmrt bench serve`.

use llmrt_bench::{BenchConfig, Progress, RunError, Watcher};
use pyo3::exceptions::{PyKeyboardInterrupt, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// Runs a load against a server and returns the report as JSON.
///
/// Blocks with the GIL released. `on_progress(measuring, total, completed, failed, chunks)` is called a few times a
/// second. Ctrl-C cuts a measurement, whose report then says so; before it, KeyboardInterrupt is raised. Any other
/// exception of a signal handler or of `on_progress` cuts the run and is raised.
///
/// Raises ValueError if the configuration is refused, OSError if the server's models or a process cannot be read,
/// RuntimeError if the warm-up fails.
#[pyfunction]
#[pyo3(signature = (config_json, on_progress=None))]
pub fn run_bench(
    py: Python<'_>,
    config_json: &str,
    on_progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let config =
        BenchConfig::from_json(config_json).map_err(|e| PyValueError::new_err(e.to_string()))?;
    let mut watcher = PythonWatcher {
        on_progress,
        raised: None,
    };
    let outcome = py.detach(|| llmrt_bench::run(&config, &mut watcher));
    match watcher.raised {
        Some(error) if !error.is_instance_of::<PyKeyboardInterrupt>(py) => return Err(error),
        _ => {}
    }
    let report = outcome.map_err(to_py)?;
    serde_json::to_string(&report).map_err(|e| PyRuntimeError::new_err(e.to_string()))
}

struct PythonWatcher {
    on_progress: Option<Py<PyAny>>,
    raised: Option<PyErr>,
}

impl Watcher for PythonWatcher {
    fn tick(&mut self, progress: Progress) -> bool {
        let told = Python::attach(|py| {
            py.check_signals()?;
            if let Some(callback) = &self.on_progress {
                let Progress {
                    measuring,
                    total,
                    completed,
                    failed,
                    chunks,
                } = progress;
                callback.call1(py, (measuring, total, completed, failed, chunks))?;
            }
            Ok(())
        });
        if let Err(error) = told {
            self.raised.get_or_insert(error);
        }
        self.raised.is_none()
    }
}

fn to_py(error: RunError) -> PyErr {
    let message = error.to_string();
    match error {
        RunError::Config(_) => PyValueError::new_err(message),
        RunError::Process(_) | RunError::Models { .. } | RunError::Runtime(_) => {
            PyOSError::new_err(message)
        }
        RunError::Interrupted => PyKeyboardInterrupt::new_err(message),
        RunError::Warmup { .. } | RunError::WarmupTimeout | RunError::Histogram(_) => {
            PyRuntimeError::new_err(message)
        }
    }
}
