//! The socket under a connection, as hyper sees it.

use std::cell::Cell;
use std::io::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::io::ReadBuf;
use tokio::time::{Instant, Sleep};

use super::greeting::Greeting;
use super::head_timer::Received;
use super::stream::Stream;
use super::wire::Wire;

/// A stream that says it cannot gather writes, and that gives up on peers that never finish their preface or never
/// read what they are sent.
///
/// Without gathered writes `h2` copies frames of up to 1 KiB into its write buffer instead of chaining them: the tokens
/// of all streams of a step leave in one `write`. HTTP/1.1 chunks are flattened into one buffer the same way.
pub struct Socket {
    wire: Wire,
    greeting: Greeting,
    received: Received,
    /// Runs while the kernel takes no more bytes for the peer.
    stalled: Option<Pin<Box<Sleep>>>,
    patience: Patience,
}

/// What a peer may take its time with.
#[derive(Clone, Copy)]
pub struct Patience {
    /// Until it has sent as many bytes as decide on the protocol.
    pub greeting: Duration,
    /// Until it has read something of what waits for it.
    pub stall: Duration,
}

impl Socket {
    /// The peer must have greeted until `deadline`. `writes` counts the `write` calls that took bytes.
    pub fn new(
        stream: Stream,
        deadline: Instant,
        patience: Patience,
        writes: Rc<Cell<u64>>,
    ) -> Self {
        Self {
            wire: Wire::new(stream, writes),
            greeting: Greeting::new(deadline),
            received: Received::default(),
            stalled: None,
            patience,
        }
    }

    /// The count of bytes that the peer has sent.
    pub fn received(&self) -> Received {
        self.received.clone()
    }

    /// What an answer on this connection may write to itself; none where bytes are encrypted on their way.
    pub fn wire(&self) -> Option<Wire> {
        self.wire.is_plain().then(|| self.wire.clone())
    }

    /// Writes the rest of a chunk that did not come from hyper.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            match self.wire.poll_rest(cx) {
                Poll::Pending => return self.await_reader(cx),
                Poll::Ready(Ok(true)) => self.stalled = None,
                Poll::Ready(done) => return Poll::Ready(done.map(drop)),
            }
        }
    }

    fn await_reader<T>(&mut self, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let patience = self.patience.stall;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(Error::new(
            ErrorKind::TimedOut,
            "the peer reads nothing",
        )))
    }
}

impl Read for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut cursor: ReadBufCursor<'_>,
    ) -> Poll<Result<()>> {
        // SAFETY: the tokio stream only ever initialises bytes of the buffer; `advance` counts what it filled.
        let mut buf = ReadBuf::uninit(unsafe { cursor.as_mut() });
        match self.wire.poll_read(cx, &mut buf) {
            Poll::Ready(Ok(())) => {
                let greeted = self.greeting.take(buf.filled());
                let count = buf.filled().len();
                // SAFETY: the read above initialised `count` bytes.
                unsafe { cursor.advance(count) };
                self.received.add(count);
                Poll::Ready(greeted)
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => self.greeting.poll_late(cx),
        }
    }
}

impl Write for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        self.greeting.answered();
        ready!(self.poll_rest(cx))?;
        let poll = self.wire.poll_write(cx, bytes);
        if poll.is_pending() {
            return self.await_reader(cx);
        }
        self.stalled = None;
        poll
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        ready!(self.poll_rest(cx))?;
        match self.wire.poll_flush(cx) {
            // TLS takes bytes before the kernel does.
            Poll::Pending => self.await_reader(cx),
            flushed => flushed,
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        ready!(self.poll_rest(cx))?;
        match self.wire.poll_shutdown(cx) {
            // TLS says goodbye, which takes a reader too.
            Poll::Pending => self.await_reader(cx),
            shut => shut,
        }
    }
}
