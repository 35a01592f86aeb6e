//! `Entry`: an entry worker embedded in a Python process.

use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use llmrt_entry::{
    CoreDown, EntryConfig, EntryWorker, Joined, LocalClient, LocalResponse, StartError, api,
    exposition,
};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::tunnel::CoreSession;

/// An entry worker: HTTP server, tokenizer threads and router, on threads of its own.
#[pyclass(frozen, module = "llmrt._core")]
pub struct Entry {
    worker: Mutex<State>,
}

enum State {
    Configured(Box<EntryConfig>, Option<Joined>),
    Started(EntryWorker),
    Failed,
}

#[pymethods]
impl Entry {
    /// With `core`, which is used up, the worker is an entry node of that core; it ends by itself when the core will not
    /// have it any more.
    ///
    /// Raises ValueError if the configuration is refused, or `core` was used before.
    #[new]
    #[pyo3(signature = (config_json, core=None))]
    fn new(config_json: &str, core: Option<&CoreSession>) -> PyResult<Self> {
        let config = EntryConfig::from_json(config_json)
            .map_err(|e| PyValueError::new_err(e.to_string()))?;
        let joined = core.map(CoreSession::take).transpose()?;
        Ok(Self {
            worker: Mutex::new(State::Configured(Box::new(config), joined)),
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
                State::Configured(config, joined) => {
                    let worker = match joined {
                        Some(joined) => EntryWorker::start_joined(*config, joined),
                        None => EntryWorker::start(*config),
                    };
                    *state = State::Started(worker.map_err(to_py)?);
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
        Ok(py.detach(|| {
            // Others may use the worker meanwhile.
            let end = match &*self.state() {
                State::Started(worker) => worker.end(),
                _ => return true,
            };
            end.wait(timeout)
        }))
    }

    /// Reads certificates and keys again, for connections from now on; what cannot be used is logged and changes nothing.
    fn reload(&self, py: Python<'_>) {
        py.detach(|| {
            if let State::Started(worker) = &*self.state() {
                worker.reload();
            }
        });
    }

    /// A way to make requests from this process. Raises OSError if there are no more descriptors, RuntimeError if the
    /// worker was not started.
    fn client(&self) -> PyResult<Client> {
        match &*self.state() {
            State::Started(worker) => Ok(Client(worker.client()?)),
            _ => Err(PyRuntimeError::new_err("the entry worker does not run")),
        }
    }

    /// A process of the core has died, for `reason`. `scheduler` is the incarnation of the scheduler that it was: its
    /// open requests end with an error. `back_in` is the number of seconds until the core is expected to be up again,
    /// which clients are told; requests get 503 until then.
    #[pyo3(signature = (reason, scheduler=None, back_in=None))]
    fn core_down(
        &self,
        py: Python<'_>,
        reason: String,
        scheduler: Option<u64>,
        back_in: Option<f64>,
    ) -> PyResult<()> {
        let back_in = back_in
            .map(Duration::try_from_secs_f64)
            .transpose()
            .map_err(|e| PyValueError::new_err(e.to_string()))?;
        let down = CoreDown {
            reason,
            scheduler,
            back_in,
        };
        py.detach(|| {
            if let State::Started(worker) = &*self.state() {
                worker.core_down(down);
            }
        });
        Ok(())
    }
}

impl Entry {
    fn state(&self) -> MutexGuard<'_, State> {
        self.worker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn to_py(error: StartError) -> PyErr {
    let message = error.to_string();
    match error {
        StartError::Config(_) | StartError::Log(_) => PyValueError::new_err(message),
        StartError::Listen(_)
        | StartError::Link(_)
        | StartError::Join(_)
        | StartError::Signal(_)
        | StartError::Thread(_) => PyOSError::new_err(message),
        _ => PyRuntimeError::new_err(message),
    }
}

/// Makes requests to the entry worker of this process. All methods may be called from many threads.
#[pyclass(frozen, module = "llmrt._core")]
pub struct Client(LocalClient);

#[pymethods]
impl Client {
    /// Sends a request with a JSON body; returns at once. Raises ValueError if `method` or `path` is none.
    fn request(&self, method: &str, path: &str, body: Vec<u8>) -> PyResult<Response> {
        let response = self.0.request(method, path, body.into());
        let response = response.map_err(|e| PyValueError::new_err(e.to_string()))?;
        Ok(Response {
            key: response.key(),
            answer: Mutex::new(Answer {
                response: Some(response),
                status: None,
                ended: false,
            }),
        })
    }

    /// Keys of the responses that have news since the last call.
    fn ready(&self) -> Vec<u64> {
        self.0.ready()
    }

    /// Descriptor that is readable while `ready` has something to tell; only to be waited for.
    fn fileno(&self) -> i32 {
        self.0.as_fd().as_raw_fd()
    }
}

/// An answer as it arrives. Closing or dropping it cancels its request.
#[pyclass(frozen, module = "llmrt._core")]
pub struct Response {
    /// What `Client.ready` calls it.
    #[pyo3(get)]
    key: u64,
    answer: Mutex<Answer>,
}

struct Answer {
    response: Option<LocalResponse>,
    status: Option<u16>,
    ended: bool,
}

#[pymethods]
impl Response {
    /// HTTP status, as far as `take` has met it.
    #[getter]
    fn status(&self) -> Option<u16> {
        self.answer().status
    }

    /// Whether `take` has met the end, or the response was closed.
    #[getter]
    fn ended(&self) -> bool {
        self.answer().ended
    }

    /// The part of the body that has arrived since the last call; never waits.
    fn take<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let mut answer = self.answer();
        let Some(response) = &mut answer.response else {
            return PyBytes::new(py, &[]);
        };
        let body = response.take();
        let (status, ended) = (response.status(), response.ended());
        answer.status = status;
        answer.ended = ended;
        PyBytes::new(py, &body)
    }

    /// Cancels the request unless it has ended.
    fn close(&self) {
        let mut answer = self.answer();
        answer.response = None;
        answer.ended = true;
    }
}

impl Response {
    fn answer(&self) -> MutexGuard<'_, Answer> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Raises ValueError unless `tls_json` names certificates and keys that an entry worker could use now.
#[pyfunction]
pub fn check_tls(py: Python<'_>, tls_json: &str) -> PyResult<()> {
    py.detach(|| llmrt_entry::check_tls(tls_json))
        .map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Raises ValueError unless an entry worker could use the API keys in `path`; `priorities` says whether the scheduler
/// knows any.
#[pyfunction]
pub fn check_keys(py: Python<'_>, path: PathBuf, priorities: bool) -> PyResult<()> {
    py.detach(|| llmrt_entry::check_keys(&path, priorities))
        .map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Raises ValueError unless `fields_json` is an object of sampling fields that the server would take. Token ids are
/// bounded by a model's vocabulary, which is not known here.
#[pyfunction]
pub fn check_sampling(fields_json: &str) -> PyResult<()> {
    api::check_sampling(fields_json.as_bytes())
        .map_err(|error| PyValueError::new_err(error.message().to_owned()))
}

/// Serves as an entry worker in a process of its own, until the supervisor's call or SIGTERM ends it.
///
/// Blocks with the GIL released. Raises ValueError if the configuration is refused, OSError if a socket cannot be used,
/// RuntimeError if the tokenizer or chat template cannot.
#[pyfunction]
pub fn run_entry(py: Python<'_>, config_json: &str) -> PyResult<()> {
    py.detach(|| llmrt_entry::serve(config_json)).map_err(to_py)
}

/// Adds up the metrics of several entry workers, in OpenMetrics text form; `counters_only` leaves gauges out.
#[pyfunction]
#[pyo3(signature = (texts, counters_only=false))]
pub fn add_metrics(texts: Vec<String>, counters_only: bool) -> String {
    exposition::add(texts.iter().map(String::as_str), counters_only)
}

/// What all workers show, from each worker's own metrics by its number: their sums, and each worker's under names of
/// its own. Without the closing line.
#[pyfunction]
pub fn merge_metrics(workers: Vec<(u16, String)>) -> String {
    let workers: Vec<_> = (workers.iter())
        .map(|(worker, text)| (*worker, text.as_str()))
        .collect();
    exposition::merge(&workers)
}
