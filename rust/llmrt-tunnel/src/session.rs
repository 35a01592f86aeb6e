//! The greetings on a connection, and single pieces before records flow.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::noise::{GREETING, Handshake, LENGTH, MAX_PLAIN, Opener, Sealer};
use crate::secret::Secret;

/// How long the other side may take for all that comes before records.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// What the gateway says to whom it does not believe. It stands in clear text and proves nothing; it is for people.
const REFUSAL: &[u8] = b"llmrt: another secret";

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The two ends do not share a secret.
    #[error("the two ends have not the same shared secret")]
    Secret,
    /// The other end speaks something else.
    #[error("the other end does not speak this protocol")]
    Stranger,
}

/// A connection whose ends have proved that they share a secret.
pub struct Session {
    pub stream: TcpStream,
    pub sealer: Sealer,
    pub opener: Opener,
}

impl Session {
    /// Greets as a node.
    pub async fn initiate(mut stream: TcpStream, secret: &Secret) -> Result<Self, SessionError> {
        stream.set_nodelay(true)?;
        let mut handshake = Handshake::initiator(secret);
        send(&mut stream, &handshake.greet()).await?;
        let greeting = receive(&mut stream, GREETING).await?;
        if greeting == REFUSAL {
            return Err(SessionError::Secret);
        }
        if greeting.len() != GREETING {
            return Err(SessionError::Stranger);
        }
        (handshake.greeted(&greeting)).map_err(|_| SessionError::Secret)?;
        Ok(Self::new(stream, handshake))
    }

    /// Answers as the gateway. What the node says next proves that it is no recording.
    pub async fn answer(mut stream: TcpStream, secret: &Secret) -> Result<Self, SessionError> {
        stream.set_nodelay(true)?;
        let mut handshake = Handshake::responder(secret);
        let greeting = receive(&mut stream, GREETING).await?;
        if greeting.len() != GREETING {
            return Err(SessionError::Stranger);
        }
        if handshake.greeted(&greeting).is_err() {
            send(&mut stream, REFUSAL).await?;
            return Err(SessionError::Secret);
        }
        send(&mut stream, &handshake.greet()).await?;
        Ok(Self::new(stream, handshake))
    }

    fn new(stream: TcpStream, handshake: Handshake) -> Self {
        let (sealer, opener) = handshake.finish();
        Self {
            stream,
            sealer,
            opener,
        }
    }

    /// Sends `plain` as one piece. An error where it is longer than [`MAX_PLAIN`], and nothing is sent then.
    pub async fn send(&mut self, plain: &[u8]) -> Result<(), SessionError> {
        if plain.len() > MAX_PLAIN {
            return Err(io::Error::from(io::ErrorKind::InvalidInput).into());
        }
        let mut piece = Vec::new();
        self.sealer.seal(plain, &mut piece);
        Ok(self.stream.write_all(&piece).await?)
    }

    /// Receives one piece. Reads nothing beyond it.
    pub async fn receive(&mut self) -> Result<BytesMut, SessionError> {
        let piece = receive(&mut self.stream, usize::from(u16::MAX)).await?;
        let mut plain = BytesMut::new();
        (self.opener.open(&piece, &mut plain)).map_err(|_| SessionError::Stranger)?;
        Ok(plain)
    }
}

async fn send(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let mut piece = Vec::with_capacity(LENGTH + message.len());
    piece.extend_from_slice(&(message.len() as u16).to_be_bytes());
    piece.extend_from_slice(message);
    stream.write_all(&piece).await
}

async fn receive(stream: &mut TcpStream, most: usize) -> Result<Vec<u8>, SessionError> {
    let length = usize::from(stream.read_u16().await?);
    if length > most {
        return Err(SessionError::Stranger);
    }
    let mut message = vec![0; length];
    stream.read_exact(&mut message).await?;
    Ok(message)
}
