//! What a link runs on: the parts that a transport brings, and the two ends over any of them.

use std::future::Future;
use std::sync::Arc;

use llmrt_wire::Message;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

pub use crate::driver::{Connector, Source};
pub use crate::inbox::{Arrival, Listener};
pub use crate::outbox::Pipe;

use crate::driver::drive;
use crate::inbox::Desk;
use crate::outbox::Sender;
use crate::{Event, Identity, Inbox, LinkOptions, Outbox, PeerId, PeerState, SendError, Welcome};

/// Sending end of a link over any transport.
pub struct LinkOutbox {
    sender: Arc<Sender>,
    driver: AbortHandle,
}

impl LinkOutbox {
    /// Connects in the background; nobody needs to listen yet. Must be called within a tokio runtime, which then carries
    /// the link.
    pub fn over(connector: impl Connector, identity: Identity, options: LinkOptions) -> Self {
        let sender = Sender::new(identity, options);
        let driver = tokio::spawn(drive(sender.clone(), connector)).abort_handle();
        Self { sender, driver }
    }
}

impl Outbox for LinkOutbox {
    fn send(&self, message: &Message) -> Result<(), SendError> {
        self.sender.send(message)
    }

    fn state(&self) -> watch::Receiver<PeerState> {
        self.sender.state()
    }

    fn is_greeting(&self) -> bool {
        self.sender.is_greeting()
    }

    fn incoming(&self) -> Option<mpsc::Receiver<Message>> {
        self.sender.incoming()
    }

    fn close(&self, reason: &str) {
        self.sender.close(reason);
        self.driver.abort();
    }
}

impl Drop for LinkOutbox {
    fn drop(&mut self) {
        self.close("the sender is gone");
    }
}

/// Receiving end of links over any transport.
pub struct LinkInbox<L: Listener>(Desk<L>);

impl<L: Listener> LinkInbox<L> {
    /// Answers those who greet with `welcome`. Must be called within a tokio runtime.
    pub fn over(listener: L, welcome: Welcome, options: &LinkOptions) -> Self {
        Self(Desk::new(listener, welcome, options))
    }
}

impl<L: Listener> Inbox for LinkInbox<L> {
    fn recv(&mut self) -> impl Future<Output = Event> + Send {
        self.0.recv()
    }

    fn send(&mut self, peer: PeerId, message: &Message) -> Result<(), SendError> {
        self.0.send(peer, message)
    }

    async fn close(mut self, reason: &str) {
        self.0.close(reason).await;
    }
}
