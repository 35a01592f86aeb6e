//! The loop over in-memory links.

mod common;

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use common::{HELLO, Step, decoder, id, outcome, stops, tokens};
use llmrt_detokenizer::{Links, State, serve};
use llmrt_link::memory::{self, MemoryInbox, Network};
use llmrt_link::{Event, Identity, Inbox, LinkOptions, LinkOutbox, Outbox, PeerId, Welcome};
use llmrt_wire::{Call, FinishReason, Message, Output, Reply, TextFrame};
use tokio::task::JoinHandle;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(20);

fn options() -> LinkOptions {
    LinkOptions {
        backoff: Duration::from_millis(20),
        ..LinkOptions::default()
    }
}

fn bind(network: &Network, name: &str) -> MemoryInbox {
    MemoryInbox::bind(network, name, Welcome::new(), options()).expect("the name is free")
}

fn connect(network: &Network, name: &str, role: &str) -> LinkOutbox {
    memory::connect(network, name, Identity::new(role, 0), options())
}

async fn ready(outbox: &impl Outbox) {
    let mut state = outbox.state();
    timeout(PATIENCE, state.wait_for(|state| state.is_ready()))
        .await
        .expect("no answer")
        .expect("the link ended");
}

/// The next message, and who sent it.
async fn receive(inbox: &mut MemoryInbox) -> (PeerId, Message) {
    loop {
        if let Event::Message { peer, message } =
            timeout(PATIENCE, inbox.recv()).await.expect("no message")
        {
            return (peer, message);
        }
    }
}

async fn text(inbox: &mut MemoryInbox) -> TextFrame {
    match receive(inbox).await.1 {
        Message::TextFrame(frame) => frame,
        other => panic!("not a text frame: {other:?}"),
    }
}

async fn joined(inbox: &mut MemoryInbox) -> PeerId {
    loop {
        if let Event::Joined { peer, .. } =
            timeout(PATIENCE, inbox.recv()).await.expect("nobody came")
        {
            return peer;
        }
    }
}

/// A detokenizer for two entry workers, and everybody around it.
struct Stage {
    network: Network,
    requests: MemoryInbox,
    control: MemoryInbox,
    supervised: PeerId,
    detokenizer: JoinHandle<()>,
}

impl Stage {
    async fn new(network: Network) -> Self {
        let requests = bind(&network, "requests");
        let mut control = bind(&network, "control");
        let inbox = bind(&network, "tokens");
        let connect =
            |name: &str| -> Arc<dyn Outbox> { Arc::new(connect(&network, name, "detokenizer")) };
        let links = Links {
            entries: vec![connect("entry 0"), connect("entry 1")],
            scheduler: connect("requests"),
            control: connect("control"),
        };
        let detokenizer = tokio::spawn(serve(State::new(decoder()), inbox, links, pending()));
        let supervised = joined(&mut control).await;
        Self {
            network,
            requests,
            control,
            supervised,
            detokenizer,
        }
    }

    async fn scheduler(&self) -> LinkOutbox {
        let outbox = connect(&self.network, "tokens", "scheduler");
        ready(&outbox).await;
        outbox
    }

    async fn call(&mut self, method: &str) -> Reply {
        let call = Call {
            tag: Default::default(),
            call: 7,
            method: method.to_owned(),
            arguments: String::new(),
        };
        self.control
            .send(self.supervised, &call.into())
            .expect("the detokenizer is there");
        match receive(&mut self.control).await.1 {
            Message::Reply(reply) => reply,
            other => panic!("not a reply: {other:?}"),
        }
    }
}

#[tokio::test]
async fn each_worker_gets_its_rows_and_the_scheduler_the_stops() {
    let network = Network::default();
    let (mut zero, mut one) = (bind(&network, "entry 0"), bind(&network, "entry 1"));
    let mut stage = Stage::new(network).await;
    joined(&mut zero).await;
    joined(&mut one).await;
    let scheduler = stage.scheduler().await;

    let (first, second) = (id(0, 1), id(1, 1));
    let step = Step::default()
        .open(first, Output::default())
        .open(second, stops(&["STOP"]));
    let step = step.row(first, &[HELLO]).row(second, &tokens("an STOP"));
    scheduler
        .send(&step.0.into())
        .expect("the detokenizer is ready");
    assert_eq!(text(&mut zero).await.text, "hello ");
    let frame = text(&mut one).await;
    assert_eq!((frame.text.as_str(), frame.finished.len()), ("an ", 1));
    match receive(&mut stage.requests).await.1 {
        Message::Ended(ended) => assert_eq!(ended.ids, [second]),
        other => panic!("not an end: {other:?}"),
    }

    let reply = stage.call("stats").await;
    let stats: serde_json::Value = serde_json::from_str(&reply.value).expect("stats are JSON");
    assert_eq!(
        (reply.call, reply.ok, &stats["open"], &stats["stopped"]),
        (7, true, &1.into(), &1.into())
    );
    assert!(!stage.call("dance").await.ok);
}

#[tokio::test]
async fn a_visitor_may_look_but_not_touch() {
    let network = Network::default();
    let mut entry = bind(&network, "entry 0");
    let stage = Stage::new(network).await;
    joined(&mut entry).await;
    let scheduler = stage.scheduler().await;
    let visitor = connect(&stage.network, "tokens", "doctor");
    ready(&visitor).await;
    let mut replies = visitor.incoming().expect("first taker");
    for (method, ok) in [("stats", true), ("shutdown", false), ("dance", false)] {
        let call = Call {
            tag: Default::default(),
            call: 3,
            method: method.to_owned(),
            arguments: String::new(),
        };
        visitor.send(&call.into()).expect("ready");
        match timeout(PATIENCE, replies.recv()).await.expect("no answer") {
            Some(Message::Reply(reply)) => assert_eq!((reply.call, reply.ok), (3, ok)),
            other => panic!("not a reply: {other:?}"),
        }
    }
    visitor.close("has seen enough");
    let step = Step::default().open(id(0, 1), Output::default());
    scheduler
        .send(&step.row(id(0, 1), &[HELLO]).0.into())
        .expect("ready");
    assert_eq!(text(&mut entry).await.text, "hello ");
}

#[tokio::test]
async fn shutdown_is_answered_and_told_to_everybody() {
    let network = Network::default();
    let mut entry = bind(&network, "entry 0");
    let mut stage = Stage::new(network).await;
    joined(&mut entry).await;
    assert!(stage.call("shutdown").await.ok);
    match timeout(PATIENCE, entry.recv()).await.expect("no notice") {
        Event::Left { reason, .. } => assert_eq!(reason, "shut down"),
        other => panic!("not a death notice: {other:?}"),
    }
    timeout(PATIENCE, stage.detokenizer)
        .await
        .expect("it did not end")
        .expect("it did not panic");
}

#[tokio::test]
async fn a_new_scheduler_ends_the_requests_of_the_old_one() {
    let network = Network::default();
    let mut entry = bind(&network, "entry 0");
    let stage = Stage::new(network).await;
    joined(&mut entry).await;
    let old = stage.scheduler().await;
    old.send(
        &Step::default()
            .open(id(0, 1), Output::default())
            .row(id(0, 1), &[HELLO])
            .0
            .into(),
    )
    .expect("ready");
    assert_eq!(text(&mut entry).await.text, "hello ");

    let new = stage.scheduler().await;
    let frame = text(&mut entry).await;
    let outcome = &frame.finished[0].outcome;
    assert_eq!(
        (frame.ids[0], outcome.reason, outcome.status),
        (id(0, 1).0, FinishReason::Error, 503)
    );
    new.send(
        &Step::default()
            .open(id(0, 2), Output::default())
            .row(id(0, 2), &[HELLO])
            .0
            .into(),
    )
    .expect("ready");
    assert_eq!(text(&mut entry).await.ids[0], id(0, 2).0);
}

#[tokio::test]
async fn an_unreachable_worker_costs_only_its_own_requests() {
    let network = Network::default();
    let mut zero = bind(&network, "entry 0");
    let mut stage = Stage::new(network.clone()).await;
    joined(&mut zero).await;
    let scheduler = stage.scheduler().await;
    let (here, shown, silent) = (id(0, 1), id(1, 1), id(1, 2));
    let step = [here, shown, silent]
        .into_iter()
        .fold(Step::default(), |step, id| step.open(id, Output::default()));
    let step = step.row(here, &[HELLO]).row(shown, &[HELLO]);
    scheduler
        .send(&step.0.into())
        .expect("the detokenizer is ready");

    assert_eq!(text(&mut zero).await.text, "hello ");
    match receive(&mut stage.requests).await.1 {
        Message::Ended(mut ended) => {
            ended.ids.sort();
            assert_eq!(ended.ids, [shown, silent]);
        }
        other => panic!("not an end: {other:?}"),
    }
    // What the worker missed waits for it, the ends of its requests included.
    let mut one = bind(&network, "entry 1");
    assert_eq!(text(&mut one).await.text, "hello ");
    let mut ids = text(&mut one).await.ids.to_vec();
    ids.sort();
    assert_eq!(ids, [shown.0, silent.0]);

    let step = Step::default()
        .row(here, &[HELLO])
        .row(shown, &[HELLO])
        .end(outcome(FinishReason::Stop));
    scheduler
        .send(&step.0.into())
        .expect("the detokenizer is ready");
    assert_eq!(text(&mut zero).await.text, "hello ");
}

#[tokio::test]
async fn a_worker_that_has_not_answered_yet_misses_nothing() {
    let network = Network::default();
    let mut zero = bind(&network, "entry 0");
    // Connected to, but it does not read yet.
    let mut one = bind(&network, "entry 1");
    let stage = Stage::new(network.clone()).await;
    joined(&mut zero).await;
    let scheduler = stage.scheduler().await;
    let (here, there) = (id(0, 1), id(1, 1));
    let open = [here, there]
        .into_iter()
        .fold(Step::default(), |step, id| step.open(id, Output::default()));
    let last = Step::default()
        .row(there, &[HELLO])
        .end(outcome(FinishReason::Stop));
    for step in [open.row(here, &[HELLO]).row(there, &[HELLO]), last] {
        scheduler
            .send(&step.0.into())
            .expect("the detokenizer is ready");
    }
    assert_eq!(text(&mut zero).await.text, "hello ");
    joined(&mut one).await;
    let (first, second) = (text(&mut one).await, text(&mut one).await);
    assert_eq!(
        (first.text, second.text),
        ("hello ".into(), "hello ".into())
    );
    assert_eq!(second.finished[0].outcome.reason, FinishReason::Stop);
}

#[tokio::test]
async fn steady_traffic_does_not_put_off_what_is_owed() {
    let network = Network::default();
    let mut zero = bind(&network, "entry 0");
    let mut stage = Stage::new(network.clone()).await;
    joined(&mut zero).await;
    let scheduler = stage.scheduler().await;
    let (here, away) = (id(0, 1), id(1, 1));
    let open = [here, away]
        .into_iter()
        .fold(Step::default(), |step, id| step.open(id, Output::default()));
    scheduler
        .send(&open.row(away, &[HELLO]).0.into())
        .expect("the detokenizer is ready");
    let told = receive(&mut stage.requests).await.1;
    assert!(matches!(told, Message::Ended(ended) if ended.ids == [away]));

    let mut one = bind(&network, "entry 1");
    let traffic = async {
        loop {
            let step = Step::default().row(here, &[HELLO]);
            scheduler
                .send(&step.0.into())
                .expect("the detokenizer is ready");
            assert_eq!(text(&mut zero).await.text, "hello ");
        }
    };
    tokio::select! {
        () = traffic => {}
        frame = text(&mut one) => assert_eq!(frame.ids[0], away.0),
    }
}
