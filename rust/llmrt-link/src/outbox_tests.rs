//! The sending end's protocol on a pipe that keeps what it gets.

use llmrt_wire::{Abort, Call, Credit, Ended};

use super::*;

const LIMIT: usize = 16 * OVERHEAD;

/// Keeps what was pushed; `None` is a connection that is lost.
#[derive(Clone)]
struct Kept(Arc<Mutex<Option<Vec<Message>>>>);

impl Kept {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Some(Vec::new()))))
    }

    fn take(&self) -> Vec<Message> {
        self.0
            .lock()
            .unwrap()
            .replace(Vec::new())
            .unwrap_or_default()
    }

    fn lose(&self) {
        *self.0.lock().unwrap() = None;
    }
}

impl Pipe for Kept {
    fn push(&mut self, frame: Vec<u8>) -> bool {
        match &mut *self.0.lock().unwrap() {
            Some(frames) => frames.push(Message::decode(&frame).unwrap()),
            None => return false,
        }
        true
    }
}

fn call() -> Message {
    Call {
        tag: Default::default(),
        call: 1,
        method: "stats".into(),
        arguments: String::new(),
    }
    .into()
}

fn lost() -> End {
    End::Lost("lost".into())
}

fn ready(incarnation: u64, version: u16) -> Vec<u8> {
    let info = String::new();
    let tag = Default::default();
    let ready = Ready {
        tag,
        version,
        incarnation,
        credit: 0,
        info,
    };
    Message::from(ready).encode()
}

/// A sender that was greeted, and what it has sent since.
fn sender() -> (Arc<Sender>, Kept) {
    let options = LinkOptions {
        window: LIMIT,
        ..LinkOptions::default()
    };
    let sender = Sender::new(Identity::new("entry", 0), options);
    let kept = Kept::new();
    sender.attach(Box::new(kept.clone()), None);
    assert_eq!(sender.send(&call()), Err(SendError::NotReady));
    sender.handle(&ready(1, VERSION)).unwrap();
    assert!(matches!(kept.take().as_slice(), [Message::Hello(_)]));
    (sender, kept)
}

#[test]
fn a_full_window_opens_with_the_echo() {
    let (sender, kept) = sender();
    let sent = (0..100)
        .take_while(|_| sender.send(&call()).is_ok())
        .count();
    assert_eq!(sent, 15, "each counts its overhead and a few bytes");
    let beats: Vec<Heartbeat> = kept
        .take()
        .into_iter()
        .filter_map(|message| match message {
            Message::Heartbeat(beat) => Some(beat),
            _ => None,
        })
        .collect();
    assert_eq!(beats.len(), 3, "one for each quarter that is full");
    let echo = Message::from(beats[0].clone()).encode();
    sender.handle(&echo).unwrap();
    assert_eq!(
        (0..100)
            .take_while(|_| sender.send(&call()).is_ok())
            .count(),
        4
    );
}

#[test]
fn what_stops_requests_passes_a_full_window() {
    let (sender, kept) = sender();
    while sender.send(&call()).is_ok() {}
    kept.take();
    let before = sender.lane().window.sent;
    let urgent = [Message::from(Abort::default()), Ended::default().into()];
    for message in &urgent {
        assert_eq!(sender.send(message), Ok(()));
    }
    let mut passed = kept.take();
    passed.retain(|message| !matches!(message, Message::Heartbeat(_)));
    assert_eq!(passed, urgent);
    let counted = sender.lane().window.sent - before;
    assert!(counted > 2 * OVERHEAD as u64, "the window knows of them");
    assert_eq!(sender.send(&call()), Err(SendError::Full));
}

#[test]
fn who_was_never_answered_is_still_connecting() {
    let sender = Sender::new(Identity::new("entry", 0), LinkOptions::default());
    sender.attach(Box::new(Kept::new()), None);
    sender.detach(&lost());
    assert_eq!(*sender.state().borrow(), PeerState::Connecting);
    sender.attach(Box::new(Kept::new()), None);
    let reason = sender.handle(&ready(1, VERSION + 1)).unwrap_err();
    sender.detach(&End::Refused(reason));
    let named = format!("wire version {}", VERSION + 1);
    assert!(
        matches!(&*sender.state().borrow(), PeerState::Dead { reason } if reason.contains(&named))
    );
}

#[test]
fn an_echo_that_was_never_asked_for_changes_nothing() {
    let (sender, _kept) = sender();
    while sender.send(&call()).is_ok() {}
    let tag = Default::default();
    let stray = Heartbeat {
        tag,
        incarnation: 1,
        sequence: 0,
    };
    sender.handle(&Message::from(stray).encode()).unwrap();
    assert_eq!(sender.send(&call()), Err(SendError::Full));
}

#[test]
fn another_version_ends_the_connection() {
    let (sender, _kept) = sender();
    let reason = sender.handle(&ready(1, VERSION + 1)).unwrap_err();
    let named = format!("wire version {}", VERSION + 1);
    assert!(reason.contains(&named), "{reason}");
}

#[test]
fn foreign_bytes_are_dropped() {
    let (sender, _kept) = sender();
    for raw in [&b""[..], b"\xc1", b"\x92\x04", b"\x91\x63"] {
        assert_eq!(sender.handle(raw), Ok(()));
    }
    assert_eq!(sender.send(&call()), Ok(()));
}

#[tokio::test]
async fn a_lost_connection_wakes_the_driver() {
    let (sender, kept) = sender();
    kept.lose();
    assert_eq!(sender.send(&call()), Err(SendError::NotReady));
    sender.broken().await;
    sender.detach(&lost());
    assert_eq!(
        *sender.state().borrow(),
        PeerState::Dead {
            reason: "lost".into()
        }
    );
}

#[test]
fn credit_does_not_outlive_its_connection() {
    let (sender, _kept) = sender();
    let tag = Default::default();
    let credit = Message::from(Credit {
        tag,
        count: u32::MAX,
    });
    sender.handle(&credit.encode()).unwrap();
    sender.handle(&credit.encode()).unwrap();
    sender.detach(&lost());
    sender.attach(Box::new(Kept::new()), None);
    sender.handle(&ready(2, VERSION)).unwrap();
    assert_eq!(sender.lane().credit, 0);
}
