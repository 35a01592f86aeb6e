//! Links of either kind behind one trait, so that every scenario runs on both.

use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use llmrt_link::memory::{self, MemoryInbox, Network};
use llmrt_link::zmq::{self, ZmqInbox};
use llmrt_link::{
    Event, Identity, Inbox, LinkOptions, LinkOutbox, Outbox, PeerId, PeerState, Welcome,
};
use llmrt_wire::{Abort, Message, Output, Request, RequestId, Sampling, Submit, TextFrame};
use tokio::time::timeout;

/// Long enough for a loaded machine; no test waits for it to pass.
const PATIENCE: Duration = Duration::from_secs(20);

pub trait Fabric: Default {
    type Inbox: Inbox;
    type Outbox: Outbox;
    fn bind(&self, welcome: Welcome, options: LinkOptions) -> impl Future<Output = Self::Inbox>;
    fn connect(&self, identity: Identity, options: LinkOptions) -> Self::Outbox;
}

/// Sockets in a directory that is removed with it.
pub struct Sockets {
    directory: PathBuf,
    endpoint: String,
}

impl Default for Sockets {
    fn default() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("llmrt-link-test-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let endpoint = format!("ipc://{}/inbox", directory.display());
        Self {
            directory,
            endpoint,
        }
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Fabric for Sockets {
    type Inbox = ZmqInbox;
    type Outbox = LinkOutbox;

    async fn bind(&self, welcome: Welcome, options: LinkOptions) -> ZmqInbox {
        ZmqInbox::bind(&self.endpoint, welcome, options)
            .await
            .unwrap()
    }

    fn connect(&self, identity: Identity, options: LinkOptions) -> LinkOutbox {
        zmq::connect(&self.endpoint, identity, options).unwrap()
    }
}

#[derive(Default)]
pub struct Memory(Network);

impl Fabric for Memory {
    type Inbox = MemoryInbox;
    type Outbox = LinkOutbox;

    async fn bind(&self, welcome: Welcome, options: LinkOptions) -> MemoryInbox {
        MemoryInbox::bind(&self.0, "inbox", welcome, options).unwrap()
    }

    fn connect(&self, identity: Identity, options: LinkOptions) -> LinkOutbox {
        memory::connect(&self.0, "inbox", identity, options)
    }
}

/// Fails the test when `future` takes too long.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future)
        .await
        .expect("nothing happened in time")
}

/// Short pauses everywhere, patience all the same.
pub fn quick() -> LinkOptions {
    LinkOptions {
        heartbeat: Duration::from_millis(20),
        backoff: Duration::from_millis(20),
        ..LinkOptions::default()
    }
}

pub async fn until(outbox: &impl Outbox, wanted: impl Fn(&PeerState) -> bool) -> PeerState {
    soon(outbox.state().wait_for(wanted)).await.unwrap().clone()
}

pub async fn until_ready(outbox: &impl Outbox) {
    until(outbox, PeerState::is_ready).await;
}

pub async fn until_dead(outbox: &impl Outbox) -> String {
    match until(outbox, |state| matches!(state, PeerState::Dead { .. })).await {
        PeerState::Dead { reason } => reason.to_string(),
        other => panic!("{other:?}"),
    }
}

pub async fn joined(inbox: &mut impl Inbox) -> (PeerId, llmrt_wire::Hello) {
    match soon(inbox.recv()).await {
        Event::Joined { peer, hello } => (peer, hello),
        other => panic!("{other:?}"),
    }
}

pub async fn received(inbox: &mut impl Inbox) -> (PeerId, Message) {
    match soon(inbox.recv()).await {
        Event::Message { peer, message } => (peer, message),
        other => panic!("{other:?}"),
    }
}

pub async fn left(inbox: &mut impl Inbox) -> (PeerId, String) {
    match soon(inbox.recv()).await {
        Event::Left { peer, reason } => (peer, reason),
        other => panic!("{other:?}"),
    }
}

/// Runs the inbox until the condition holds, dropping its events.
pub async fn serving(inbox: &mut impl Inbox, condition: impl Future<Output = ()>) {
    soon(async {
        tokio::pin!(condition);
        loop {
            tokio::select! {
                () = &mut condition => return,
                _ = inbox.recv() => {}
            }
        }
    })
    .await;
}

pub fn submit(count: u64) -> Message {
    let request = |id| Request {
        id: RequestId(id),
        prompt: vec![1, 2, 3].into(),
        sampling: Sampling::default(),
        output: Output::default(),
        priority: 0,
        cache_salt: String::new(),
        deadline_ms: None,
    };
    let requests = (0..count).map(request).collect();
    Submit {
        requests,
        ..Submit::default()
    }
    .into()
}

pub fn abort(id: u64) -> Message {
    Abort {
        ids: vec![RequestId(id)],
        ..Abort::default()
    }
    .into()
}

/// A frame of one row and so many bytes of text.
pub fn text(step: u64, bytes: usize) -> Message {
    TextFrame {
        step,
        ids: vec![1].into(),
        counts: vec![1].into(),
        ends: vec![bytes as u32].into(),
        text: "x".repeat(bytes),
        ..TextFrame::default()
    }
    .into()
}
