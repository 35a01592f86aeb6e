//! The links of a worker: to a core on this host, or through a tunnel to one on another.

use std::sync::Arc;
use std::sync::atomic::AtomicU16;
use std::time::Duration;

use llmrt_link::transport::{LinkInbox, LinkOutbox};
use llmrt_link::zmq::{self, ZmqInbox};
use llmrt_link::{
    ConfigError, Event, Identity, Inbox, LinkOptions, Outbox, PeerId, SendError, Welcome,
};
use llmrt_tunnel::{Joined, Node, NodeInbox};
use llmrt_wire::Message;

use crate::config::{EntryConfig, PROCESS};
use crate::worker::StartError;

/// Silence after which a worker goes on without the keeper of the server's ledger.
const KEEPER_SILENCE: Duration = Duration::from_secs(3);

/// Where a worker sends to.
pub struct Links {
    pub outbox: Arc<dyn Outbox>,
    /// The supervisor, where it is another process.
    pub supervisor: Option<Arc<dyn Outbox>>,
    /// The keeper of the server's ledger, where several workers share one.
    pub keeper: Option<Arc<dyn Outbox>>,
    /// The worker's number, which that of a node may change while it has no core.
    pub place: Arc<AtomicU16>,
}

impl Links {
    /// Links of worker `worker` without a supervisor of its own.
    pub fn new(outbox: Arc<dyn Outbox>, worker: u16) -> Self {
        Self {
            outbox,
            supervisor: None,
            keeper: None,
            place: Arc::new(AtomicU16::new(worker)),
        }
    }

    /// Where the worker's end is to be told.
    pub fn outboxes(&self) -> Vec<Arc<dyn Outbox>> {
        let (keeper, supervisor) = (self.keeper.iter(), self.supervisor.iter());
        keeper
            .chain(supervisor)
            .chain([&self.outbox])
            .cloned()
            .collect()
    }
}

/// The inbox of either kind.
pub enum Results {
    Local(ZmqInbox),
    Tunnelled(LinkInbox<NodeInbox>),
}

impl Inbox for Results {
    async fn recv(&mut self) -> Event {
        match self {
            Self::Local(inbox) => inbox.recv().await,
            Self::Tunnelled(inbox) => inbox.recv().await,
        }
    }

    fn send(&mut self, peer: PeerId, message: &Message) -> Result<(), SendError> {
        match self {
            Self::Local(inbox) => inbox.send(peer, message),
            Self::Tunnelled(inbox) => inbox.send(peer, message),
        }
    }

    async fn close(self, reason: &str) {
        match self {
            Self::Local(inbox) => inbox.close(reason).await,
            Self::Tunnelled(inbox) => inbox.close(reason).await,
        }
    }
}

/// Opens the links; those of a node that has `joined` a core go through its tunnel, which lasts as long as the node.
pub async fn connect(
    config: &EntryConfig,
    joined: Option<Joined>,
) -> Result<(Links, Results, Option<Node>), StartError> {
    let options = config.link.options();
    let identity = Identity::new("entry", u32::from(config.worker));
    if let Some(joined) = joined {
        let (node, outbox, inbox) =
            Node::start(joined, options.silence).map_err(StartError::Join)?;
        let outbox = Arc::new(LinkOutbox::over(outbox, identity, options));
        let links = Links {
            place: node.place(),
            ..Links::new(outbox, config.worker)
        };
        let inbox = LinkInbox::over(inbox, Welcome::new(), &options);
        return Ok((links, Results::Tunnelled(inbox), Some(node)));
    }
    let Some(endpoints) = &config.endpoints else {
        let (name, rule) = ("endpoints", "there, unless the core is on another host");
        return Err(ConfigError::rule(PROCESS, name, rule).into());
    };
    let results = ZmqInbox::bind(&endpoints.results, Welcome::new(), options).await?;
    let outbox = zmq::connect(&endpoints.requests, identity.clone(), options)?;
    let mut links = Links::new(Arc::new(outbox), config.worker);
    if let Some(supervisor) = &config.supervisor {
        let outbox = zmq::connect(&supervisor.control, identity.clone(), options)?;
        links.supervisor = Some(Arc::new(outbox));
    }
    if let Some(ledger) = &endpoints.ledger {
        // Its keeper never has a long step to make, so that silence says early that it does not answer.
        let silence = options.silence.min(KEEPER_SILENCE);
        let options = LinkOptions { silence, ..options };
        links.keeper = Some(Arc::new(zmq::connect(ledger, identity, options)?));
    }
    Ok((links, Results::Local(results), None))
}
