//! The receiving end's protocol on a listener that is a script.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use llmrt_wire::{Abort, Dead, Heartbeat, Hello, Message, VERSION};

use crate::inbox::{Arrival, Desk, Listener};
use crate::{Event, LinkOptions, SendError, Welcome};

type Sent = Arc<Mutex<Vec<(Bytes, Message)>>>;

struct Script {
    arrivals: std::vec::IntoIter<Arrival>,
    sent: Sent,
}

impl Listener for Script {
    async fn next(&mut self) -> Arrival {
        match self.arrivals.next() {
            Some(arrival) => arrival,
            None => std::future::pending().await,
        }
    }

    fn push(&mut self, key: &Bytes, frame: Vec<u8>) -> bool {
        let message = Message::decode(&frame).unwrap();
        self.sent.lock().unwrap().push((key.clone(), message));
        true
    }

    async fn unbind(&mut self) {}
}

fn desk(arrivals: Vec<Arrival>, silence: Duration) -> (Desk<Script>, Sent) {
    let sent = Sent::default();
    let script = Script {
        arrivals: arrivals.into_iter(),
        sent: sent.clone(),
    };
    let options = LinkOptions {
        silence,
        ..LinkOptions::default()
    };
    (Desk::new(script, Welcome::new(), &options), sent)
}

fn from(key: &'static str, message: impl Into<Message>) -> Arrival {
    Arrival::Frame {
        key: key.into(),
        raw: message.into().encode().into(),
    }
}

fn hello(index: u32, incarnation: u64) -> Hello {
    let tag = Default::default();
    Hello {
        tag,
        version: VERSION,
        role: "entry".into(),
        index,
        incarnation,
    }
}

const LONG: Duration = Duration::from_secs(3600);

async fn events(desk: &mut Desk<Script>, count: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for _ in 0..count {
        lines.push(match desk.recv().await {
            Event::Joined { peer, hello } => format!("joined {peer} {}", hello.incarnation),
            Event::Message { peer, message } => format!("message {peer} {:?}", message.kind()),
            Event::Left { peer, reason } => format!("left {peer} {reason}"),
        });
    }
    lines
}

#[tokio::test]
async fn places_are_kept_apart_and_successors_replace() {
    let arrivals = vec![
        from("a", hello(0, 1)),
        from("b", hello(1, 1)),
        from("a", hello(0, 1)),
        from("c", hello(0, 2)),
        from("c", hello(0, 3)),
        from("a", Abort::default()),
        from("b", Abort::default()),
        Arrival::Gone { key: "b".into() },
        Arrival::Gone { key: "b".into() },
        from("c", Abort::default()),
    ];
    let (mut desk, sent) = desk(arrivals, LONG);
    let expected = [
        "joined 1 1",
        "joined 2 1",
        "left 1 replaced by a successor",
        "joined 3 2",
        "left 3 replaced by a successor",
        "joined 4 3",
        "message 2 Abort",
        "left 2 the connection is closed",
        "message 4 Abort",
    ];
    assert_eq!(events(&mut desk, expected.len()).await, expected);
    let refused =
        |(key, message): &(Bytes, Message)| key == "a" && matches!(message, Message::Dead(_));
    assert!(
        sent.lock().unwrap().iter().any(refused),
        "the replaced peer is told to greet again"
    );
    assert_eq!(
        desk.send(1, &Abort::default().into()),
        Err(SendError::NotReady)
    );
    assert_eq!(desk.send(4, &Abort::default().into()), Ok(()));
}

#[tokio::test]
async fn only_who_is_silent_is_dropped() {
    let (mut desk, _sent) = desk(vec![from("a", hello(0, 1))], Duration::from_millis(40));
    assert_eq!(
        events(&mut desk, 2).await,
        ["joined 1 1", "left 1 no sign of life"]
    );
}

#[tokio::test]
async fn heartbeats_are_echoed_to_guests_only() {
    let beat = Heartbeat {
        tag: Default::default(),
        incarnation: 1,
        sequence: 5,
    };
    let farewell = Dead {
        tag: Default::default(),
        incarnation: 1,
        reason: "bye".into(),
    };
    let arrivals = vec![
        from("a", beat.clone()),
        from("a", hello(0, 1)),
        from("a", beat.clone()),
        from("a", farewell),
    ];
    let (mut desk, sent) = desk(arrivals, LONG);
    assert_eq!(events(&mut desk, 2).await, ["joined 1 1", "left 1 bye"]);
    let sent = sent.lock().unwrap();
    let kinds: Vec<String> = sent
        .iter()
        .map(|(_, m)| format!("{:?}", m.kind()))
        .collect();
    assert_eq!(kinds, ["Dead", "Ready", "Heartbeat"]);
    assert!(matches!(&sent[2].1, Message::Heartbeat(echo) if echo.sequence == 5));
}

#[tokio::test]
async fn dropping_tells_every_guest() {
    let (mut desk, sent) = desk(vec![from("a", hello(0, 1)), from("b", hello(1, 1))], LONG);
    events(&mut desk, 2).await;
    drop(desk);
    let told = |(_, message): &&(Bytes, Message)| matches!(message, Message::Dead(_));
    assert_eq!(sent.lock().unwrap().iter().filter(told).count(), 2);
}
