//! What carries the bytes of a connection.

use std::io::{ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_rustls::server::TlsStream;

/// A listening socket.
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl Listener {
    pub(super) async fn accept(&self) -> Result<Plain> {
        match self {
            Self::Tcp(listener) => Ok(Plain::Tcp(listener.accept().await?.0)),
            Self::Unix(listener) => Ok(Plain::Unix(listener.accept().await?.0)),
        }
    }
}

/// Bytes as the kernel carries them.
pub enum Plain {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Plain {
    /// Has every write leave at once: a token must not wait for the acknowledgement of the one before.
    pub fn hurry(&self) -> Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nodelay(true),
            Self::Unix(_) => Ok(()),
        }
    }

    /// The first byte that has arrived, left where it is; none from a peer that sends nothing more.
    pub async fn first_byte(&self) -> Result<Option<u8>> {
        let mut byte = [std::mem::MaybeUninit::new(0)];
        let count = match self {
            Self::Tcp(stream) => {
                let mut peek = || SockRef::from(stream).peek(&mut byte);
                stream.async_io(Interest::READABLE, &mut peek).await?
            }
            Self::Unix(stream) => {
                let mut peek = || SockRef::from(stream).peek(&mut byte);
                stream.async_io(Interest::READABLE, &mut peek).await?
            }
        };
        // SAFETY: it was initialised above, whatever the kernel wrote.
        Ok((count > 0).then(|| unsafe { byte[0].assume_init() }))
    }
}

/// Passes a call on to the stream inside.
macro_rules! inner {
    ($self:ident, $variants:ident($($variant:ident)|+), $stream:ident => $call:expr) => {
        match $self.get_mut() {
            $($variants::$variant($stream) => $call,)+
        }
    };
}

impl AsyncRead for Plain {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        inner!(self, Plain(Tcp | Unix), stream => Pin::new(stream).poll_read(cx, buf))
    }
}

impl AsyncWrite for Plain {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<Result<usize>> {
        inner!(self, Plain(Tcp | Unix), stream => Pin::new(stream).poll_write(cx, buf))
    }

    // TLS hands over all records of a write together.
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        inner!(self, Plain(Tcp | Unix), stream => Pin::new(stream).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        inner!(self, Plain(Tcp | Unix), stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        inner!(self, Plain(Tcp | Unix), stream => Pin::new(stream).poll_shutdown(cx))
    }
}

/// Bytes as HTTP has them. Clear text costs no more than telling the variants apart.
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<Plain>>),
}

impl From<Plain> for Stream {
    fn from(plain: Plain) -> Self {
        match plain {
            Plain::Tcp(stream) => Self::Tcp(stream),
            Plain::Unix(stream) => Self::Unix(stream),
        }
    }
}

impl Stream {
    /// Writes what the kernel takes at once.
    ///
    /// # Errors
    /// It takes nothing now, or the bytes would have to be encrypted.
    pub(super) fn try_write(&self, bytes: &[u8]) -> Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Unix(stream) => stream.try_write(bytes),
            Self::Tls(_) => Err(ErrorKind::Unsupported.into()),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        inner!(self, Stream(Tcp | Unix | Tls), stream => Pin::new(stream).poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<Result<usize>> {
        inner!(self, Stream(Tcp | Unix | Tls), stream => Pin::new(stream).poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        inner!(self, Stream(Tcp | Unix | Tls), stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        inner!(self, Stream(Tcp | Unix | Tls), stream => Pin::new(stream).poll_shutdown(cx))
    }
}
