//! A gateway on loopback between real links and nodes.

mod rogues;
mod strangers;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use llmrt_link::transport::LinkInbox;
use llmrt_link::{LinkOptions, LinkTimes, PeerState};
use llmrt_wire::{Abort, RequestId, TextFrame};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;
use crate::join::{Join, JoinError, Target};
use crate::node::Node;
use crate::secret::Secret;
use crate::session::Session;

const SECRET: &str = "a secret of both ends";
/// Long enough for a loaded machine; no test waits for it to pass.
const LONG: Duration = Duration::from_secs(20);

fn secret() -> Secret {
    Secret::new(SECRET.as_bytes()).unwrap()
}

/// A core with one place for a node: its scheduler, a detokenizer and the gateway.
struct Rig {
    directory: PathBuf,
    address: String,
    scheduler: ZmqInbox,
    detokenizer: LinkOutbox,
    places: Rc<Places>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Rig {
    async fn new(silence_s: f64) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("llmrt-tunnel-test-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let at = |name: &str| format!("ipc://{}", directory.join(name).display());
        let config = Config {
            listen_fd: -1,
            control: at("control"),
            status: at("status"),
            requests: at("requests"),
            slots: vec![config::SlotConfig {
                worker: 1,
                results: at("results"),
            }],
            secret: secret(),
            fingerprint: "same".into(),
            core: json!({"name": "m"}),
            log: Default::default(),
            link: LinkTimes {
                heartbeat_s: 0.2,
                silence_s,
            },
        };
        let options = config.link.options();
        let welcome = Welcome {
            credit: 8,
            ..Welcome::new()
        };
        let scheduler = ZmqInbox::bind(&config.requests, welcome, options)
            .await
            .unwrap();
        let identity = Identity::new("detokenizer", 0);
        let detokenizer = zmq::connect(&config.slots[0].results, identity, options).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let places = open(config, listener).await.unwrap();
        Self {
            directory,
            address,
            scheduler,
            detokenizer,
            places,
        }
    }

    fn target(&self) -> Target {
        target(&self.address, secret())
    }

    /// The next event of the scheduler that is no heartbeat.
    async fn event(&mut self) -> Event {
        timeout(LONG, self.scheduler.recv()).await.unwrap()
    }

    async fn detokenizer_is(&self, wanted: fn(&PeerState) -> bool) {
        let mut state = self.detokenizer.state();
        timeout(LONG, state.wait_for(wanted))
            .await
            .unwrap()
            .unwrap();
    }
}

fn target(address: &str, secret: Secret) -> Target {
    Target {
        address: address.to_owned(),
        secret,
        fingerprint: "same".into(),
        node: Identity::draw(),
    }
}

/// An entry worker that has joined through a tunnel.
struct Worker {
    _node: Node,
    outbox: LinkOutbox,
    events: UnboundedReceiver<Event>,
    reader: JoinHandle<()>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Worker {
    async fn new(target: Target) -> Self {
        let joined = tokio::task::spawn_blocking(move || target.join_now());
        let joined = joined.await.unwrap().unwrap();
        let options = LinkOptions {
            heartbeat: Duration::from_millis(200),
            ..LinkOptions::default()
        };
        let (node, outbox, inbox) = Node::start(joined, options.silence).unwrap();
        let identity = Identity::new("entry", 0);
        let mut inbox = LinkInbox::over(inbox, Welcome::new(), &options);
        let (taken, events) = unbounded_channel();
        // Greetings are answered by whoever reads.
        let reader = async move { while taken.send(inbox.recv().await).is_ok() {} };
        Self {
            _node: node,
            outbox: LinkOutbox::over(outbox, identity, options),
            events,
            reader: spawn_local(reader),
        }
    }

    /// The next frame of a detokenizer.
    async fn frame(&mut self) -> TextFrame {
        loop {
            match timeout(LONG, self.events.recv()).await.unwrap() {
                Some(Event::Message {
                    message: Message::TextFrame(frame),
                    ..
                }) => return frame,
                Some(_) => continue,
                None => panic!("the reader has ended"),
            }
        }
    }

    async fn ready(&self) {
        let mut state = self.outbox.state();
        let ready = timeout(LONG, state.wait_for(PeerState::is_ready)).await;
        ready.unwrap().unwrap();
    }
}

fn joined(event: Event) -> (String, u32) {
    match event {
        Event::Joined { hello, .. } => (hello.role, hello.index),
        other => panic!("{other:?} where somebody was to join"),
    }
}

fn abort(sequence: u64) -> Message {
    let ids = vec![RequestId::new(1, 0, sequence)];
    Abort {
        ids,
        ..Abort::default()
    }
    .into()
}

fn here<F: Future<Output = ()>>(test: F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    LocalSet::new().block_on(&runtime, test);
}

#[test]
fn links_pass_both_ways_and_end_with_the_node_and_another_takes_its_place() {
    here(async {
        let mut rig = Rig::new(30.0).await;
        for round in 0..2 {
            let mut worker = Worker::new(rig.target()).await;
            assert_eq!(
                joined(rig.event().await),
                ("entry".to_owned(), 1),
                "its place"
            );
            worker.ready().await;
            rig.detokenizer_is(PeerState::is_ready).await;
            worker.outbox.send(&abort(round)).unwrap();
            assert!(matches!(
                rig.event().await,
                Event::Message { message, .. } if message == abort(round)
            ));
            // Larger than a piece.
            let text = "naïve 🦊 ".repeat(20_000);
            let frame = TextFrame {
                ids: vec![RequestId::new(1, 0, round).0].into(),
                counts: vec![1].into(),
                ends: vec![text.len() as u32].into(),
                text,
                ..TextFrame::default()
            };
            rig.detokenizer.send(&frame.clone().into()).unwrap();
            assert_eq!(worker.frame().await.text, frame.text);
            drop(worker);
            assert!(matches!(rig.event().await, Event::Left { .. }));
            rig.detokenizer_is(|state| matches!(state, PeerState::Dead { .. }))
                .await;
        }
        assert_eq!(rig.places.stats()["nodes"], 0);
    });
}

#[test]
fn secrets_tokenizers_versions_and_places_that_do_not_fit_are_refused() {
    here(async {
        let rig = Rig::new(30.0).await;
        let other = Secret::new(b"the secret of someone else").unwrap();
        let refused = target(&rig.address, other).join(None).await.err().unwrap();
        assert!(matches!(refused, JoinError::Secret { .. }) && !refused.may_pass());
        let stranger = Target {
            fingerprint: "another".into(),
            ..rig.target()
        };
        let refused = stranger.join(None).await.err().unwrap();
        assert!(refused.to_string().contains("same model") && !refused.may_pass());
        let stream = TcpStream::connect(&rig.address).await.unwrap();
        let mut session = Session::initiate(stream, &secret()).await.unwrap();
        let join = Join {
            version: crate::VERSION + 1,
            wire: llmrt_wire::VERSION,
            node: 1,
            fingerprint: "same".into(),
            slot: None,
        };
        session
            .send(&serde_json::to_vec(&join).unwrap())
            .await
            .unwrap();
        let answer = session.receive().await.unwrap();
        assert!(String::from_utf8_lossy(&answer).contains("same llmrt"));
        let _first = rig.target().join(None).await.unwrap();
        let refused = rig.target().join(None).await.err().unwrap();
        assert!(refused.to_string().contains("--max-entry-nodes") && refused.may_pass());
    });
}

#[test]
fn many_aborts_at_once_all_arrive_and_cost_the_node_nothing() {
    here(async {
        const COUNT: u64 = 5000;
        let mut rig = Rig::new(30.0).await;
        let worker = Worker::new(rig.target()).await;
        assert_eq!(joined(rig.event().await), ("entry".to_owned(), 1));
        worker.ready().await;
        for sequence in 0..COUNT {
            worker.outbox.send(&abort(sequence)).unwrap();
        }
        for sequence in 0..COUNT {
            assert!(matches!(
                rig.event().await,
                Event::Message { message, .. } if message == abort(sequence)
            ));
        }
        assert_eq!(rig.places.stats()["nodes"], 1);
    });
}
