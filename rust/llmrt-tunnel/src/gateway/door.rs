//! Who comes from outside: proves itself, says who it is, and gets a place.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, spawn_local, yield_now};
use tokio::time::{sleep, timeout};

use super::config::Config;
use super::places::{Occupant, Places};
use super::slot::{Guest, Guests};
use crate::VERSION;
use crate::join::{Answer, Join, Refused, Welcome};
use crate::line::Line;
use crate::record::cut;
use crate::secret::Secret;
use crate::session::{PATIENCE, Session, SessionError};

/// Connections that have not proved themselves yet. Each further one takes the place of the oldest: anybody can hold any
/// number of silent ones, and a node that waited behind them would not come in.
const HALF_OPEN: usize = 64;
/// Least time between two lines about those who were not let in.
const QUIET: Duration = Duration::from_secs(1);
/// Pause after a connection that the system could not give us.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Lets nodes in.
pub struct Door {
    config: Rc<Config>,
    places: Rc<Places>,
    /// Ways to the places, by their index.
    guests: Vec<Guests>,
    complaints: Complaints,
}

impl Door {
    pub fn new(config: Rc<Config>, places: Rc<Places>, guests: Vec<Guests>) -> Rc<Self> {
        Rc::new(Self {
            config,
            places,
            guests,
            complaints: Complaints::default(),
        })
    }

    /// Takes connections for as long as the gateway lives.
    pub async fn open(self: Rc<Self>, listener: TcpListener) {
        let mut half_open: VecDeque<(SocketAddr, AbortHandle)> = VecDeque::new();
        loop {
            match listener.accept().await {
                Ok((stream, address)) => {
                    half_open.retain(|(_, task)| !task.is_finished());
                    if half_open.len() >= HALF_OPEN
                        && let Some((oldest, task)) = half_open.pop_front()
                    {
                        task.abort();
                        self.complaints.tell(oldest, &Unfit::crowded());
                    }
                    let task = spawn_local(self.clone().meet(stream, address));
                    half_open.push_back((address, task.abort_handle()));
                    // It is heard before many others come.
                    yield_now().await;
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be taken");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Hears who has connected, and lets it in when it has proved itself.
    async fn meet(self: Rc<Self>, stream: TcpStream, address: SocketAddr) {
        match in_time(prove(stream, &self.config.secret)).await {
            // On its own: no stranger can push it aside any more.
            Ok((session, join)) => drop(spawn_local(self.admit(session, join, address))),
            Err(unfit) => self.complaints.tell(address, &unfit),
        }
    }

    async fn admit(self: Rc<Self>, session: Session, join: BytesMut, address: SocketAddr) {
        if let Err(unfit) = in_time(self.answer(session, &join, address)).await {
            self.complaints.tell(address, &unfit);
        }
    }

    /// Returns why the one at `address` was not let in.
    async fn answer(
        &self,
        mut session: Session,
        join: &[u8],
        address: SocketAddr,
    ) -> Result<(), Unfit> {
        let since = Instant::now();
        let placed = self
            .judge(join)
            .and_then(|join| self.place(&join, address, since));
        match placed {
            Ok(index) => Ok(self.seat(session, address, index, since).await?),
            Err(refused) => {
                send(&mut session, &Answer::Refused(refused.clone())).await?;
                Err(refused.into())
            }
        }
    }

    /// Sends a node to the place that it took at `since`.
    async fn seat(
        &self,
        mut session: Session,
        address: SocketAddr,
        index: usize,
        since: Instant,
    ) -> Result<(), SessionError> {
        let slot = self.places.worker(index);
        // Given back however this ends.
        let mut taken = Taken(Some((self.places.clone(), slot, since)));
        let welcome = Welcome {
            slot,
            core: self.config.core.clone(),
        };
        send(&mut session, &Answer::Welcome(welcome)).await?;
        let line = Line::open(session, self.config.link.options().silence);
        self.places.settled(slot, since, line.outgoing().clone());
        let guest = Guest {
            line,
            address,
            since,
        };
        if self.guests[index].send(guest).await.is_ok() {
            taken.0 = None;
        }
        Ok(())
    }

    /// Reads what a node says of itself, and whether it fits.
    fn judge(&self, join: &[u8]) -> Result<Join, Refused> {
        let refused = |mut reason: String| {
            // It may repeat what the node has sent.
            cut(&mut reason);
            Refused {
                reason,
                again: false,
            }
        };
        let join: Join = serde_json::from_slice(join)
            .map_err(|error| refused(format!("its greeting cannot be read: {error}")))?;
        let (mine, its) = ((VERSION, llmrt_wire::VERSION), (join.version, join.wire));
        if mine != its {
            return Err(refused(format!(
                "the node speaks version {}.{}, the core {}.{}: run the same llmrt on both hosts",
                its.0, its.1, mine.0, mine.1
            )));
        }
        if join.fingerprint != self.config.fingerprint {
            return Err(refused(
                "the node has another tokenizer than the core: give both the same model".to_owned(),
            ));
        }
        Ok(join)
    }

    fn place(&self, join: &Join, address: SocketAddr, since: Instant) -> Result<usize, Refused> {
        let occupant = Occupant {
            node: join.node,
            address,
            since,
            outgoing: None,
        };
        let taken = self.places.take(occupant, join.slot);
        taken.ok_or_else(|| Refused {
            reason: format!(
                "all {} places for entry nodes are taken: start the core with a larger --max-entry-nodes",
                self.config.slots.len()
            ),
            again: true,
        })
    }
}

/// A session with whoever knows the secret, and what it says of itself.
async fn prove(stream: TcpStream, secret: &Secret) -> Result<(Session, BytesMut), Unfit> {
    let mut session = Session::answer(stream, secret).await?;
    let join = session.receive().await?;
    Ok((session, join))
}

async fn in_time<T>(step: impl Future<Output = Result<T, Unfit>>) -> Result<T, Unfit> {
    match timeout(PATIENCE, step).await {
        Ok(done) => done,
        Err(_) => Err(Unfit {
            kind: "silent",
            reason: format!("it has not joined within {} s", PATIENCE.as_secs()),
        }),
    }
}

async fn send(session: &mut Session, answer: &Answer) -> Result<(), SessionError> {
    let plain = serde_json::to_vec(answer).map_err(io::Error::from)?;
    session.send(&plain).await
}

/// Why somebody was not let in; lines of one `kind` are alike.
struct Unfit {
    kind: &'static str,
    reason: String,
}

impl Unfit {
    fn crowded() -> Self {
        Self {
            kind: "crowded",
            reason: format!("{HALF_OPEN} others came before it had joined"),
        }
    }
}

impl From<Refused> for Unfit {
    fn from(refused: Refused) -> Self {
        Self {
            kind: "refused",
            reason: refused.reason,
        }
    }
}

impl From<SessionError> for Unfit {
    fn from(error: SessionError) -> Self {
        let kind = match error {
            SessionError::Io(_) => "broken",
            SessionError::Secret => "secret",
            SessionError::Stranger => "stranger",
        };
        let reason = error.to_string();
        Self { kind, reason }
    }
}

/// A place that is given back unless its node has arrived there.
struct Taken(Option<(Rc<Places>, u16, Instant)>);

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some((places, worker, since)) = self.0.take() {
            places.leave(worker, since);
        }
    }
}

/// Lines about those who were not let in: anybody can cause them, so they are few of each kind.
#[derive(Default)]
struct Complaints(RefCell<HashMap<&'static str, (Instant, u64)>>);

impl Complaints {
    fn tell(&self, address: SocketAddr, Unfit { kind, reason }: &Unfit) {
        let mut last = self.0.borrow_mut();
        let others = match last.get_mut(kind) {
            Some((at, untold)) if at.elapsed() < QUIET => {
                *untold += 1;
                return;
            }
            Some((_, untold)) => *untold,
            None => 0,
        };
        last.insert(kind, (Instant::now(), 0));
        tracing::warn!(%address, reason, others, "an entry node was not let in");
    }
}
