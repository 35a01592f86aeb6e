//! Writing to an HTTP/1.1 connection past hyper.
//!
//! A token needs one `write`. On its way through hyper it also wakes the connection's task, which looks for bytes to
//! read, at its timers and at its body before it writes: that costs as much again.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::stream::Stream;

/// The stream of a connection, shared by its [`super::socket::Socket`] and the answer that is streamed on it.
///
/// Between two turns of the connection's task hyper has nothing left to write, or has found that the peer takes no more
/// ([`Self::poll_write`]). In the first case an answer whose head has left may write its next chunk itself.
#[derive(Clone)]
pub struct Wire(Rc<Inner>);

struct Inner {
    stream: RefCell<Stream>,
    /// What is left of a chunk of which the kernel took a part; goes before whatever hyper writes.
    rest: RefCell<BytesMut>,
    /// Whether hyper's bytes wait for the peer.
    blocked: Cell<bool>,
    /// Counts the `write` calls that took bytes.
    writes: Rc<Cell<u64>>,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Wire").finish_non_exhaustive()
    }
}

/// What became of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The kernel has it.
    Whole,
    /// Its rest leaves at the next turn of the connection's task, which is to be woken.
    Partly,
    /// Nothing of it was taken: it has to take the way through hyper.
    Not,
}

impl Wire {
    pub(super) fn new(stream: Stream, writes: Rc<Cell<u64>>) -> Self {
        Self(Rc::new(Inner {
            stream: RefCell::new(stream),
            rest: RefCell::default(),
            blocked: Cell::new(false),
            writes,
        }))
    }

    /// Whether bytes are not encrypted on their way.
    pub(super) fn is_plain(&self) -> bool {
        !matches!(*self.0.stream.borrow(), Stream::Tls(_))
    }

    /// Writes `data` as one chunk (RFC 9112, section 7.1), put together in `room`.
    ///
    /// To be called outside of the connection's task, and between the head and the last chunk of an answer.
    pub fn write_chunk(&self, data: &[u8], room: &mut Vec<u8>) -> Written {
        let mut rest = self.0.rest.borrow_mut();
        if self.0.blocked.get() || !rest.is_empty() {
            return Written::Not;
        }
        room.clear();
        put_size(data.len(), room);
        room.extend_from_slice(data);
        room.extend_from_slice(b"\r\n");
        // Hyper meets an error itself.
        let Ok(count) = self.0.stream.borrow().try_write(room) else {
            return Written::Not;
        };
        self.count_write();
        rest.extend_from_slice(&room[count..]);
        match rest.is_empty() {
            true => Written::Whole,
            false => Written::Partly,
        }
    }

    pub(super) fn poll_read(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.stream.borrow_mut()).poll_read(cx, buf)
    }

    /// Writes some of the rest of a chunk; false when there is none.
    pub(super) fn poll_rest(&self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut rest = self.0.rest.borrow_mut();
        if rest.is_empty() {
            return Poll::Ready(Ok(false));
        }
        match ready!(self.poll_stream(cx, &rest))? {
            0 => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            count => {
                rest.advance(count);
                Poll::Ready(Ok(true))
            }
        }
    }

    /// Writes for hyper. There must be no rest.
    pub(super) fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let poll = self.poll_stream(cx, bytes);
        self.0.blocked.set(poll.is_pending());
        poll
    }

    pub(super) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.stream.borrow_mut()).poll_flush(cx)
    }

    pub(super) fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.stream.borrow_mut()).poll_shutdown(cx)
    }

    fn poll_stream(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut *self.0.stream.borrow_mut()).poll_write(cx, bytes);
        if let Poll::Ready(Ok(_)) = poll {
            self.count_write();
        }
        poll
    }

    fn count_write(&self) {
        self.0.writes.set(self.0.writes.get() + 1);
    }
}

/// Appends a chunk's size line.
fn put_size(size: usize, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let digits = (usize::BITS - size.leading_zeros()).div_ceil(4).max(1);
    for digit in (0..digits).rev() {
        out.push(HEX[size >> (4 * digit) & 15]);
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_hexadecimal() {
        for size in [0, 1, 15, 16, 255, 256, 0xabcd, usize::MAX] {
            let mut out = Vec::new();
            put_size(size, &mut out);
            assert_eq!(out, format!("{size:x}\r\n").into_bytes());
        }
    }
}
