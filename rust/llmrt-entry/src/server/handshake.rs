//! From an accepted socket to a stream that carries HTTP.

use std::io;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use super::stream::{Plain, Stream};
use crate::api::ApiError;

/// First byte of every TLS connection: a record that holds a handshake (RFC 8446, section 5.1).
const HANDSHAKE: u8 = 22;
/// Bytes that are read of a request after it was refused: with unread ones the kernel resets the connection, and the
/// answer is lost.
const LINGER: u64 = 64 << 10;

/// The protocol that a client has chosen in its handshake (ALPN).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chosen {
    Http1,
    Http2,
    /// None: its first bytes decide.
    Open,
}

/// Shakes hands where there are certificates, until `deadline`. A client that speaks HTTP in clear text is told so.
///
/// # Errors
/// The client left, is late, or does not speak TLS as we do.
pub async fn secure(
    plain: Plain,
    tls: Option<TlsAcceptor>,
    deadline: Instant,
) -> io::Result<(Stream, Chosen)> {
    let Some(acceptor) = tls else {
        return Ok((plain.into(), Chosen::Open));
    };
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no TLS handshake in time");
    let shaken = async {
        match plain.first_byte().await? {
            Some(HANDSHAKE) => Ok(acceptor.accept(plain).await?),
            Some(letter) if letter.is_ascii_alphabetic() => {
                refuse(plain).await?;
                Err(io::Error::other("clear text where TLS is spoken"))
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    };
    let stream = tokio::time::timeout_at(deadline, shaken)
        .await
        .map_err(late)??;
    let chosen = match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => Chosen::Http2,
        Some(_) => Chosen::Http1,
        None => Chosen::Open,
    };
    Ok((Stream::Tls(Box::new(stream)), chosen))
}

/// Answers a request in clear text and lets it end.
async fn refuse(mut plain: Plain) -> io::Result<()> {
    plain.write_all(&clear_text_answer()).await?;
    plain.shutdown().await?;
    tokio::io::copy(&mut plain.take(LINGER), &mut tokio::io::sink()).await?;
    Ok(())
}

fn clear_text_answer() -> Bytes {
    let refusal = ApiError::invalid("This port speaks TLS; use https://.").code("tls_required");
    let body = refusal.body();
    let mut answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    )
    .into_bytes();
    answer.extend_from_slice(&body);
    answer.into()
}
