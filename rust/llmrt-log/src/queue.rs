//! Log lines on their way to standard error.
//!
//! Whoever logs never waits: a pipe that nobody reads would stop every answer of an I/O thread. Lines are written by a
//! thread of their own, at once; a full queue loses the new ones and counts them.

use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Lines that wait for the thread that writes them.
pub struct Queue {
    capacity: usize,
    state: Mutex<State>,
    /// A line has come.
    filled: Condvar,
    /// All lines have been written.
    idle: Condvar,
}

#[derive(Default)]
struct State {
    lines: VecDeque<Vec<u8>>,
    /// Lines that found the queue full since the last one was taken.
    lost: u64,
    writing: bool,
}

impl State {
    fn busy(&self) -> bool {
        self.writing || !self.lines.is_empty()
    }
}

impl Queue {
    /// A queue of at most `capacity` lines.
    pub const fn new(capacity: usize) -> Self {
        Self {
            capacity,
            state: Mutex::new(State {
                lines: VecDeque::new(),
                lost: 0,
                writing: false,
            }),
            filled: Condvar::new(),
            idle: Condvar::new(),
        }
    }

    /// Nothing is left half done under the lock, so that a panic of its holder does no harm.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: &[u8]) {
        let mut state = self.lock();
        if state.lines.len() < self.capacity {
            state.lines.push_back(line.to_vec());
            self.filled.notify_one();
        } else {
            state.lost += 1;
        }
    }

    /// Writes lines to `out` as they come, for ever. `lost` is told how many were lost, before the next line is written.
    pub fn write_to(&self, mut out: impl io::Write, lost: impl Fn(u64)) -> ! {
        loop {
            let (line, gap) = self.next();
            if gap > 0 {
                lost(gap);
            }
            // There is nobody to tell that standard error is gone.
            let _ = out.write_all(&line).and_then(|()| out.flush());
        }
    }

    fn next(&self) -> (Vec<u8>, u64) {
        let mut state = self.lock();
        state.writing = false;
        loop {
            if let Some(line) = state.lines.pop_front() {
                state.writing = true;
                return (line, std::mem::take(&mut state.lost));
            }
            self.idle.notify_all();
            let woken = self.filled.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until all lines have been written; false when `timeout` passed before.
    pub fn flush(&self, timeout: Duration) -> bool {
        let waited = self
            .idle
            .wait_timeout_while(self.lock(), timeout, |state| state.busy());
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

/// Takes one whole line per `write`.
impl io::Write for &Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn lines_are_written_in_order_and_flushed() {
        let queue: &Queue = Box::leak(Box::new(Queue::new(100)));
        let (out, written) = UnixStream::pair().unwrap();
        thread::spawn(move || queue.write_to(out, |_| ()));
        for number in 0..50 {
            writeln!({ queue }, "{number}").unwrap();
        }
        assert!(queue.flush(PATIENCE));
        let expected: String = (0..50).map(|number| format!("{number}\n")).collect();
        let mut text = String::new();
        let mut written = written.take(expected.len() as u64);
        written.read_to_string(&mut text).unwrap();
        assert_eq!(text, expected);
    }

    #[test]
    fn a_reader_that_stops_delays_nobody_and_the_loss_is_told() {
        let queue: &Queue = Box::leak(Box::new(Queue::new(10)));
        let (out, reader) = UnixStream::pair().unwrap();
        let lost = Arc::new(AtomicU64::new(0));
        let told = lost.clone();
        thread::spawn(move || {
            queue.write_to(out, |count| {
                told.fetch_add(count, Ordering::SeqCst);
            })
        });
        // More than a socket holds: the writer is stuck with the first of them.
        let line = vec![b'x'; 4 << 20];
        { queue }.write_all(&line).unwrap();
        for _ in 0..30 {
            { queue }.write_all(b"y\n").unwrap();
        }
        assert!(!queue.flush(Duration::from_millis(1)));
        thread::spawn(move || io::copy(&mut { reader }, &mut io::sink()));
        assert!(queue.flush(PATIENCE));
        { queue }.write_all(b"z\n").unwrap();
        assert!(queue.flush(PATIENCE));
        // The first line may have been taken before or after the queue was full.
        assert!((20..=21).contains(&lost.load(Ordering::SeqCst)));
    }
}
