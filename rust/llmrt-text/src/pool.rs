//! Threads that tokenize and render prompts, so that no I/O thread ever does.
//!
//! Two bounded queues feed a fixed number of threads. Short jobs go first, and one thread is always kept from long
//! jobs: a prompt of a megabyte delays no one but its sender and other long prompts.

#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    thread::{self, JoinHandle},
};

use thiserror::Error;
use tokio::sync::oneshot;

use crate::Tokenizer;

/// Bytes of text from which a job's memory is given back: it was some hundred times as many, and took a good part of a
/// second to use.
const GIVEN_BACK: usize = 256 * 1024;

/// Size of a [`TokenizerPool`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolOptions {
    /// Threads to run; below 2 counts as 2, as one is kept from long jobs.
    pub threads: usize,
    /// Jobs that may wait in each of the two queues.
    pub queue: usize,
    /// Size hint from which a job is long.
    pub long: usize,
}

impl PoolOptions {
    /// 256 jobs per queue; long from 16 KiB of text, which take some 10 ms.
    pub fn new(threads: usize) -> Self {
        Self {
            threads,
            queue: 256,
            long: 16 * 1024,
        }
    }
}

/// Why a job gave no result.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PoolError {
    #[error("too many prompts wait for tokenization; try again later")]
    Full,
    #[error("tokenization has been shut down")]
    Closed,
    #[error("a tokenization job panicked: {0}")]
    Panicked(String),
}

/// Dedicated threads that run jobs with a tokenizer at hand. Dropping the pool drops the jobs that wait, whose callers
/// get [`PoolError::Closed`], and blocks until the running ones are done.
pub struct TokenizerPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// The result of a job, once it has run. Dropping it cancels a job that has not begun.
#[derive(Debug)]
pub struct Pending<R>(oneshot::Receiver<Result<R, PoolError>>);

impl<R> Future for Pending<R> {
    type Output = Result<R, PoolError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let received = ready!(Pin::new(&mut self.0).poll(context));
        Poll::Ready(received.unwrap_or(Err(PoolError::Closed)))
    }
}

struct Shared {
    tokenizer: Tokenizer,
    options: PoolOptions,
    /// Long jobs that may run at once.
    long_limit: usize,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    short: VecDeque<Box<dyn Job>>,
    long: VecDeque<Long>,
    long_running: usize,
    closed: bool,
}

struct Long {
    job: Box<dyn Job>,
    size: usize,
}

trait Job: Send {
    fn run(self: Box<Self>, tokenizer: &Tokenizer);
}

struct Task<F, R> {
    job: F,
    reply: oneshot::Sender<Result<R, PoolError>>,
}

impl<F, R> Job for Task<F, R>
where
    F: FnOnce(&Tokenizer) -> R + Send,
    R: Send,
{
    fn run(self: Box<Self>, tokenizer: &Tokenizer) {
        let Self { job, reply } = *self;
        if reply.is_closed() {
            return;
        }
        // Unwind safety: the job is consumed, and the tokenizer is only read.
        let result = catch_unwind(AssertUnwindSafe(|| job(tokenizer)));
        let result = result.map_err(|payload| {
            let message = panic_message(&*payload);
            tracing::error!(message, "a tokenization job panicked");
            PoolError::Panicked(message.to_owned())
        });
        // A caller that left meanwhile needs no result.
        drop(reply.send(result));
    }
}

fn panic_message(payload: &(dyn std::any::Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

impl TokenizerPool {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system refuses to start a thread.
    pub fn new(tokenizer: Tokenizer, options: PoolOptions) -> std::io::Result<Self> {
        let threads = options.threads.max(2);
        let shared = Arc::new(Shared {
            tokenizer,
            options,
            long_limit: threads - 1,
            state: Mutex::default(),
            work: Condvar::new(),
        });
        let mut pool = Self {
            shared,
            threads: Vec::with_capacity(threads),
        };
        for index in 0..threads {
            let shared = pool.shared.clone();
            let thread = thread::Builder::new().name(format!("tokenizer-{index}"));
            pool.threads.push(thread.spawn(move || shared.work())?);
        }
        Ok(pool)
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.shared.tokenizer
    }

    /// Queues `job` and returns at once. `size_hint`, in bytes of text, says whether the job is long.
    ///
    /// The result may be awaited on any runtime. A job whose result nobody awaits any more is skipped.
    ///
    /// # Errors
    /// [`PoolError::Full`] if the queue for jobs of this size is full. Panics of the job and the end of the pool are
    /// errors of the returned future.
    pub fn submit<F, R>(&self, size_hint: usize, job: F) -> Result<Pending<R>, PoolError>
    where
        F: FnOnce(&Tokenizer) -> R + Send + 'static,
        R: Send + 'static,
    {
        let (reply, pending) = oneshot::channel();
        let mut state = self.shared.lock();
        let (options, size) = (&self.shared.options, size_hint);
        let is_long = size >= options.long;
        let waiting = match is_long {
            true => state.long.len(),
            false => state.short.len(),
        };
        if waiting >= options.queue {
            return Err(PoolError::Full);
        }
        let job = Box::new(Task { job, reply });
        match is_long {
            true => state.long.push_back(Long { job, size }),
            false => state.short.push_back(job),
        }
        drop(state);
        self.shared.work.notify_one();
        Ok(Pending(pending))
    }

    /// Jobs that wait, short and long.
    pub fn queued(&self) -> (usize, usize) {
        let state = self.shared.lock();
        (state.short.len(), state.long.len())
    }
}

impl Drop for TokenizerPool {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        let waiting = (
            std::mem::take(&mut state.short),
            std::mem::take(&mut state.long),
        );
        drop(state);
        drop(waiting);
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A job may own the last handle of its pool; a thread cannot wait for itself.
            if thread.thread().id() != thread::current().id() {
                drop(thread.join());
            }
        }
    }
}

impl Shared {
    /// No job runs under the lock, so nothing can be left half done when a thread panics.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut state = self.lock();
        while !state.closed {
            if let Some(job) = state.short.pop_front() {
                drop(state);
                job.run(&self.tokenizer);
                state = self.lock();
            } else if let Some(Long { job, size }) = self.next_long(&mut state) {
                drop(state);
                job.run(&self.tokenizer);
                if size >= GIVEN_BACK {
                    crate::heap::trim();
                }
                state = self.lock();
                state.long_running -= 1;
                // This thread prefers short jobs; another may take the place that has come free.
                if !state.long.is_empty() {
                    self.work.notify_one();
                }
            } else {
                let woken = self.work.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn next_long(&self, state: &mut State) -> Option<Long> {
        if state.long_running >= self.long_limit {
            return None;
        }
        let job = state.long.pop_front()?;
        state.long_running += 1;
        Some(job)
    }
}
