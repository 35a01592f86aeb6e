//! The cryptography, without I/O: greetings that prove the secret, and sealed pieces.

use std::sync::Arc;

use bytes::BytesMut;
use snow::params::NoiseParams;
use snow::{Builder, HandshakeState, StatelessTransportState};

use crate::secret::Secret;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const PROLOGUE: &[u8] = b"llmrt tunnel";
const TAG: usize = 16;

/// Bytes of a greeting: an ephemeral key, and the proof that its sender knows the secret.
pub const GREETING: usize = 32 + TAG;
/// Bytes that a piece may carry; with its tag it has the most that its length field can say.
pub const MAX_PLAIN: usize = u16::MAX as usize - TAG;
/// Bytes before each piece that say its length.
pub const LENGTH: usize = 2;

/// A piece or greeting that nobody made who knows the secret, or not for this place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message is not authentic")]
pub struct Forged;

/// Two greetings, one in each direction; the node's is the first.
pub struct Handshake(HandshakeState);

impl Handshake {
    /// The node's side.
    pub fn initiator(secret: &Secret) -> Self {
        Self::new(secret, |builder| builder.build_initiator())
    }

    /// The gateway's side.
    pub fn responder(secret: &Secret) -> Self {
        Self::new(secret, |builder| builder.build_responder())
    }

    fn new(
        secret: &Secret,
        build: impl FnOnce(Builder<'_>) -> Result<HandshakeState, snow::Error>,
    ) -> Self {
        let state = PATTERN
            .parse::<NoiseParams>()
            .and_then(|params| {
                Builder::new(params)
                    .psk(0, secret.key())?
                    .prologue(PROLOGUE)
            })
            .and_then(build);
        Self(state.expect("the pattern is known and has all that it needs"))
    }

    /// The greeting of this side, when it is its turn.
    pub fn greet(&mut self) -> [u8; GREETING] {
        let mut greeting = [0; GREETING];
        let written = self.0.write_message(&[], &mut greeting);
        assert_eq!(written.ok(), Some(GREETING), "it is this side's turn");
        greeting
    }

    /// Takes the greeting of the other side.
    pub fn greeted(&mut self, greeting: &[u8]) -> Result<(), Forged> {
        match self.0.read_message(greeting, &mut []) {
            Ok(0) => Ok(()),
            _ => Err(Forged),
        }
    }

    /// The two directions, after both greetings.
    pub fn finish(self) -> (Sealer, Opener) {
        let state = self.0.into_stateless_transport_mode();
        let state = Arc::new(state.expect("both greetings are exchanged"));
        let sealer = Sealer {
            state: state.clone(),
            nonce: 0,
        };
        (sealer, Opener { state, nonce: 0 })
    }
}

/// The outgoing direction.
pub struct Sealer {
    state: Arc<StatelessTransportState>,
    nonce: u64,
}

impl Sealer {
    /// Appends `plain`, at most [`MAX_PLAIN`] bytes, to `out` as a piece with its length in front.
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        let length = (plain.len() + TAG) as u16;
        out.extend_from_slice(&length.to_be_bytes());
        out.resize(start + LENGTH + usize::from(length), 0);
        let place = &mut out[start + LENGTH..];
        let written = self.state.write_message(self.nonce, plain, place);
        assert_eq!(written.ok(), Some(place.len()), "a piece fits its place");
        self.nonce += 1;
    }
}

/// The incoming direction.
pub struct Opener {
    state: Arc<StatelessTransportState>,
    nonce: u64,
}

impl Opener {
    /// Appends what `piece` carries to `plain`. After an error the direction is at its end.
    pub fn open(&mut self, piece: &[u8], plain: &mut BytesMut) -> Result<(), Forged> {
        let start = plain.len();
        plain.resize(start + piece.len(), 0);
        let read = self
            .state
            .read_message(self.nonce, piece, &mut plain[start..]);
        plain.truncate(start + read.as_ref().copied().unwrap_or(0));
        self.nonce += 1;
        read.map(drop).map_err(|_| Forged)
    }
}

#[cfg(test)]
#[path = "noise_tests.rs"]
mod tests;
