//! Joining a core: what a node says of itself, and what it is told.

use std::io;
use std::time::Duration;

use llmrt_link::Identity;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::VERSION;
use crate::noise::{Opener, Sealer};
use crate::secret::Secret;
use crate::session::{PATIENCE, Session, SessionError};

/// What a node says of itself.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Join {
    pub version: u16,
    /// Version of the links' messages.
    pub wire: u16,
    /// Random per process: tells a node that comes back from another one.
    pub node: u64,
    /// What its tokenizer has in common with that of the core only if they are the same.
    pub fingerprint: String,
    /// The number that it had.
    pub slot: Option<u16>,
}

/// What it is told.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Welcome(Welcome),
    Refused(Refused),
}

/// Why a node is not let in that has proved itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Refused {
    pub reason: String,
    /// Whether the same may be taken another time.
    pub again: bool,
}

/// A node's place in the core.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    /// Its number among the entry workers.
    pub slot: u16,
    /// What the core says of itself.
    pub core: Value,
}

/// Why a node has not joined.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// It may work another time.
    #[error("the core at {address} cannot be reached: {reason}")]
    Unreachable { address: String, reason: String },
    #[error(
        "the core at {address} has another shared secret: give both ends the same --core-secret-file or \
         LLMRT_CORE_SECRET"
    )]
    Secret { address: String },
    #[error("what listens at {address} is no llmrt core: name what its --core-listen says")]
    Stranger { address: String },
    #[error("the core at {address} refuses this node: {reason}")]
    Refused {
        address: String,
        reason: String,
        again: bool,
    },
}

impl JoinError {
    /// Whether a later attempt may succeed without a change to this node.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused { again, .. } => *again,
            Self::Secret { .. } | Self::Stranger { .. } => false,
        }
    }

    /// Whether it was said by a core, which has proved that it is one, and stays true. Anybody can say the rest who
    /// reaches this node by the core's address.
    pub(crate) fn is_verdict(&self) -> bool {
        matches!(self, Self::Refused { again: false, .. })
    }
}

/// Where a node joins, and as what.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// `HOST:PORT` of the gateway.
    pub address: String,
    pub secret: Secret,
    pub fingerprint: String,
    #[serde(skip, default = "Identity::draw")]
    pub(crate) node: u64,
}

/// A node that has joined, before its tunnel carries anything. It belongs to no runtime.
pub struct Joined {
    pub(crate) target: Target,
    pub(crate) stream: std::net::TcpStream,
    pub(crate) sealer: Sealer,
    pub(crate) opener: Opener,
    pub(crate) welcome: Welcome,
}

impl Joined {
    /// Its place.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// The session on the runtime that this is called within.
    pub(crate) fn session(self) -> io::Result<(Target, Session, Welcome)> {
        let session = Session {
            stream: TcpStream::from_std(self.stream)?,
            sealer: self.sealer,
            opener: self.opener,
        };
        Ok((self.target, session, self.welcome))
    }
}

impl Target {
    /// One attempt to join, a few seconds at most. Blocks the calling thread.
    ///
    /// # Errors
    /// See [`JoinError`].
    pub fn join_now(self) -> Result<Joined, JoinError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let unreachable = |error: io::Error| self.unreachable(&error.to_string());
        let (session, welcome) = runtime.map_err(unreachable)?.block_on(self.join(None))?;
        let stream = session.stream.into_std().map_err(unreachable)?;
        Ok(Joined {
            target: self,
            stream,
            sealer: session.sealer,
            opener: session.opener,
            welcome,
        })
    }

    /// One attempt to join, if possible as number `slot`.
    pub(crate) async fn join(&self, slot: Option<u16>) -> Result<(Session, Welcome), JoinError> {
        let connecting = timeout(PATIENCE, TcpStream::connect(&self.address));
        let stream = match connecting.await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(self.unreachable(&error.to_string())),
            Err(_) => return Err(self.unreachable(&silent(PATIENCE))),
        };
        // The gateway has as long, from the moment when it takes the connection: it may be busy with others.
        let patience = 2 * PATIENCE;
        match timeout(patience, self.introduce(stream, slot)).await {
            Ok(joined) => joined,
            Err(_) => Err(self.unreachable(&silent(patience))),
        }
    }

    async fn introduce(
        &self,
        stream: TcpStream,
        slot: Option<u16>,
    ) -> Result<(Session, Welcome), JoinError> {
        let failed = |error| self.failed(error);
        let stranger = |_| self.failed(SessionError::Stranger);
        let mut session = Session::initiate(stream, &self.secret)
            .await
            .map_err(failed)?;
        let join = Join {
            version: VERSION,
            wire: llmrt_wire::VERSION,
            node: self.node,
            fingerprint: self.fingerprint.clone(),
            slot,
        };
        let join = serde_json::to_vec(&join).map_err(stranger)?;
        session.send(&join).await.map_err(failed)?;
        let answer = session.receive().await.map_err(failed)?;
        match serde_json::from_slice(&answer).map_err(stranger)? {
            Answer::Welcome(welcome) => Ok((session, welcome)),
            Answer::Refused(Refused { reason, again }) => Err(JoinError::Refused {
                address: self.address.clone(),
                reason,
                again,
            }),
        }
    }

    fn failed(&self, error: SessionError) -> JoinError {
        let address = self.address.clone();
        match error {
            SessionError::Io(error) => self.unreachable(&error.to_string()),
            SessionError::Secret => JoinError::Secret { address },
            SessionError::Stranger => JoinError::Stranger { address },
        }
    }

    fn unreachable(&self, reason: &str) -> JoinError {
        JoinError::Unreachable {
            address: self.address.clone(),
            reason: reason.to_owned(),
        }
    }
}

fn silent(patience: Duration) -> String {
    format!("no answer within {} s", patience.as_secs())
}
