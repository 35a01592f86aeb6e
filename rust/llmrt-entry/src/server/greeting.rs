//! The first bytes of a connection: they must come in time, and on HTTP/2 be what the protocol asks for.

use std::io::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep, sleep_until};

/// The HTTP/2 connection preface (RFC 9113, section 3.4), behind which the client's SETTINGS must stand.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// What is kept: the preface, and of the frame behind it the length, the type and the flags (section 4.1).
const KEPT: usize = PREFACE.len() + 5;
const SETTINGS: u8 = 4;
const ACK: u8 = 1;

/// Watches a connection until its protocol is decided. `h2` itself takes any frame for the first.
pub struct Greeting {
    deadline: Pin<Box<Sleep>>,
    head: [u8; KEPT],
    seen: usize,
    over: bool,
}

impl Greeting {
    /// For a peer that must have greeted until `deadline`.
    pub fn new(deadline: Instant) -> Self {
        Self {
            deadline: Box::pin(sleep_until(deadline)),
            head: [0; KEPT],
            seen: 0,
            over: false,
        }
    }

    /// Takes what the peer has sent.
    ///
    /// # Errors
    /// It speaks HTTP/2 and does not begin with its SETTINGS.
    pub fn take(&mut self, bytes: &[u8]) -> Result<()> {
        if self.over {
            return Ok(());
        }
        let count = bytes.len().min(KEPT - self.seen);
        self.head[self.seen..self.seen + count].copy_from_slice(&bytes[..count]);
        self.seen += count;
        if self.seen < PREFACE.len() || (self.is_http2() && self.seen < KEPT) {
            return Ok(());
        }
        self.over = true;
        let [kind, flags] = [self.head[KEPT - 2], self.head[KEPT - 1]];
        if self.is_http2() && (kind != SETTINGS || flags & ACK != 0) {
            let message = "the HTTP/2 preface is not followed by SETTINGS";
            return Err(Error::new(ErrorKind::InvalidData, message));
        }
        Ok(())
    }

    /// The peer is answered. On HTTP/2 that may begin before it has said all that it must.
    pub fn answered(&mut self) {
        self.over |= !self.is_http2();
    }

    /// Waits while nothing comes.
    ///
    /// # Errors
    /// The peer is late.
    pub fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if self.over || self.deadline.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        let message = "no request arrived in time";
        Poll::Ready(Err(Error::new(ErrorKind::TimedOut, message)))
    }

    fn is_http2(&self) -> bool {
        self.head.starts_with(PREFACE)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fed(pieces: &[&[u8]]) -> (Result<()>, bool) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let _inside = runtime.enter();
        let mut greeting = Greeting::new(Instant::now());
        let taken = pieces.iter().try_for_each(|piece| greeting.take(piece));
        greeting.answered();
        (taken, greeting.over)
    }

    proptest! {
        #[test]
        fn http2_begins_with_settings(kind in 0u8..12, flags: u8, split in 0usize..33) {
            let frame = [0, 0, 0, kind, flags, 0, 0, 0, 0];
            let bytes = [&PREFACE[..], &frame].concat();
            let (first, second) = bytes.split_at(split);
            let (taken, over) = fed(&[first, second]);
            prop_assert!(over);
            prop_assert_eq!(taken.is_ok(), kind == SETTINGS && flags & ACK == 0);
        }
    }

    #[test]
    fn an_answer_ends_the_wait_on_http1_alone() {
        assert!(fed(&[b"GET / HTTP/1.1\r\n\r\n"]).1);
        assert!(!fed(&[PREFACE]).1);
    }
}
