//! Output cap and time limit of one render.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use minijinja::{Error, ErrorKind};

use crate::error::Bound;
use crate::options::Limits;

/// Text a template may print into captures (`{% set %}` blocks, macros) per byte of final output allowed.
const CAPTURE_FACTOR: usize = 4;

/// Watches everything a template prints, captured text included.
pub(crate) struct Watch {
    started: Instant,
    printed: AtomicUsize,
    limits: Limits,
}

impl Watch {
    pub(crate) fn start(limits: &Limits) -> Self {
        Self {
            started: Instant::now(),
            printed: AtomicUsize::new(0),
            limits: limits.clone(),
        }
    }

    /// Accounts for `bytes` about to be printed.
    pub(crate) fn charge(&self, bytes: usize) -> Result<(), Error> {
        let printed = self
            .printed
            .fetch_add(bytes, Ordering::Relaxed)
            .saturating_add(bytes);
        let bound = if printed > self.limits.max_output_bytes.saturating_mul(CAPTURE_FACTOR) {
            Bound::Output(self.limits.max_output_bytes)
        } else if self.started.elapsed() > self.limits.max_time {
            Bound::Time(self.limits.max_time)
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::WriteFailure, "render stopped").with_source(bound))
    }
}

/// Collects the prompt up to a cap.
pub(crate) struct Prompt {
    text: Vec<u8>,
    cap: usize,
}

impl Prompt {
    pub(crate) fn with_cap(cap: usize, expected: usize) -> Self {
        Self {
            text: Vec::with_capacity(expected.min(cap)),
            cap,
        }
    }

    /// The collected text. The engine writes whole strings, so it is valid UTF-8; `None` would be an engine bug.
    pub(crate) fn into_string(self) -> Option<String> {
        String::from_utf8(self.text).ok()
    }
}

impl io::Write for Prompt {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.text.len() + bytes.len() > self.cap {
            return Err(io::Error::other(Bound::Output(self.cap)));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
