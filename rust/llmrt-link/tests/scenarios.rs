//! What a link promises, on sockets and in memory alike.

mod fabric;

use std::time::Duration;

use fabric::{
    Fabric, Memory, Sockets, abort, joined, left, quick, received, serving, soon, submit, text,
    until, until_dead, until_ready,
};
use llmrt_link::{Identity, Inbox, LinkOptions, Outbox, PeerState, SendError, Welcome};
use llmrt_wire::{Call, Credit, Ended, Message, Reply};

/// Runs each scenario on both kinds of links.
macro_rules! on_both {
    ($($scenario:ident),* $(,)?) => {
        mod sockets {
            $(#[tokio::test]
            async fn $scenario() {
                super::$scenario(super::Sockets::default()).await;
            })*
        }
        mod memory {
            $(#[tokio::test]
            async fn $scenario() {
                super::$scenario(super::Memory::default()).await;
            })*
        }
    };
}

on_both!(
    greeting,
    connecting_before_binding,
    a_receiver_that_still_starts_is_waited_for,
    credit_bounds_submits_only,
    messages_keep_their_order,
    window_bounds_what_a_slow_reader_leaves,
    a_frame_larger_than_the_window_passes,
    what_stops_requests_passes_a_full_window,
    successor_is_found,
    silent_receiver_is_dead_until_it_speaks,
    sender_says_when_it_ends,
    restarted_sender_replaces_itself,
    peers_are_told_apart,
    calls_go_the_other_way,
    closed_outbox_stays_closed,
);

fn welcome(credit: u32) -> Welcome {
    Welcome {
        incarnation: 77,
        credit,
        info: r#"{"vocab_size":9}"#.into(),
    }
}

fn entry() -> Identity {
    Identity::new("entry", 0)
}

async fn greeting(fabric: impl Fabric) {
    let mut inbox = fabric.bind(welcome(1), quick()).await;
    let identity = Identity {
        role: "entry".into(),
        index: 3,
        incarnation: 5,
    };
    let outbox = fabric.connect(identity, quick());
    assert_eq!(outbox.send(&abort(1)), Err(SendError::NotReady));
    let (_, hello) = joined(&mut inbox).await;
    assert_eq!(
        (hello.role.as_str(), hello.index, hello.incarnation),
        ("entry", 3, 5)
    );
    let ready = PeerState::Ready {
        incarnation: 77,
        info: r#"{"vocab_size":9}"#.into(),
    };
    assert_eq!(until(&outbox, PeerState::is_ready).await, ready);
}

async fn connecting_before_binding(fabric: impl Fabric) {
    let outbox = fabric.connect(entry(), quick());
    // The first attempts fail; nothing tells from outside when they have, so give way to them.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(*outbox.state().borrow(), PeerState::Connecting);
    let mut inbox = fabric.bind(welcome(0), quick()).await;
    joined(&mut inbox).await;
    until_ready(&outbox).await;
}

async fn a_receiver_that_still_starts_is_waited_for<F: Fabric>(fabric: F) {
    let options = LinkOptions {
        silence: Duration::from_millis(100),
        ..quick()
    };
    // Bound, but busy for longer than the silence.
    let mut inbox = fabric.bind(welcome(0), LinkOptions::default()).await;
    let outbox = fabric.connect(entry(), options);
    // Another link with the same options tells that the silence has passed, twice.
    let elsewhere = F::default();
    let mut witness = elsewhere.bind(welcome(0), LinkOptions::default()).await;
    let other = elsewhere.connect(entry(), options);
    for _ in 0..2 {
        serving(&mut witness, until_ready(&other)).await;
        assert!(until_dead(&other).await.contains("silent"));
        assert_eq!(*outbox.state().borrow(), PeerState::Connecting);
    }
    joined(&mut inbox).await;
    until_ready(&outbox).await;
}

async fn credit_bounds_submits_only(fabric: impl Fabric) {
    let mut inbox = fabric.bind(welcome(3), quick()).await;
    let outbox = fabric.connect(entry(), quick());
    let (peer, _) = joined(&mut inbox).await;
    until_ready(&outbox).await;
    assert_eq!(outbox.send(&submit(4)), Err(SendError::Full));
    assert_eq!(outbox.send(&submit(2)), Ok(()));
    assert_eq!(outbox.send(&submit(2)), Err(SendError::Full));
    assert_eq!(outbox.send(&submit(1)), Ok(()));
    assert_eq!(outbox.send(&submit(1)), Err(SendError::Full));
    for id in 0..1000 {
        assert_eq!(
            outbox.send(&abort(id)),
            Ok(()),
            "an abort is never held back"
        );
    }
    inbox
        .send(
            peer,
            &Credit {
                tag: Default::default(),
                count: 2,
            }
            .into(),
        )
        .unwrap();
    serving(&mut inbox, async {
        while outbox.send(&submit(2)) == Err(SendError::Full) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(outbox.send(&submit(1)), Err(SendError::Full));
}

async fn messages_keep_their_order(fabric: impl Fabric) {
    let mut inbox = fabric.bind(welcome(1000), quick()).await;
    let outbox = fabric.connect(entry(), quick());
    joined(&mut inbox).await;
    until_ready(&outbox).await;
    let sent: Vec<Message> = (0..500)
        .flat_map(|id| [submit(1), abort(id), text(id, 10)])
        .collect();
    for message in &sent {
        outbox.send(message).unwrap();
    }
    for message in sent {
        assert_eq!(received(&mut inbox).await.1, message);
    }
}

async fn window_bounds_what_a_slow_reader_leaves(fabric: impl Fabric) {
    let options = LinkOptions {
        window: 1 << 20,
        ..quick()
    };
    let mut inbox = fabric.bind(welcome(0), options).await;
    let outbox = fabric.connect(entry(), options);
    joined(&mut inbox).await;
    until_ready(&outbox).await;
    let mut sent = 0;
    while outbox.send(&text(sent, 100_000)) == Ok(()) {
        sent += 1;
        assert!(sent <= 10, "the window is a megabyte");
        tokio::task::yield_now().await;
    }
    assert_eq!(sent, 10);
    assert_eq!(outbox.send(&text(sent, 100_000)), Err(SendError::Full));
    for step in 0..sent {
        assert_eq!(received(&mut inbox).await.1, text(step, 100_000));
    }
    // All is read: the echoes that follow open the window again.
    serving(&mut inbox, async {
        while outbox.send(&text(99, 900_000)) == Err(SendError::Full) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

async fn what_stops_requests_passes_a_full_window(fabric: impl Fabric) {
    let options = LinkOptions {
        window: 1 << 20,
        ..quick()
    };
    let mut inbox = fabric.bind(welcome(0), options).await;
    let outbox = fabric.connect(entry(), options);
    joined(&mut inbox).await;
    until_ready(&outbox).await;
    outbox.send(&text(1, 5 << 20)).unwrap();
    assert_eq!(outbox.send(&text(2, 1)), Err(SendError::Full));
    let ended = Message::from(Ended::default());
    for message in [abort(1), ended.clone()] {
        assert_eq!(outbox.send(&message), Ok(()));
    }
    assert_eq!(outbox.send(&text(2, 1)), Err(SendError::Full));
    for message in [text(1, 5 << 20), abort(1), ended] {
        assert_eq!(received(&mut inbox).await.1, message);
    }
}

async fn a_frame_larger_than_the_window_passes(fabric: impl Fabric) {
    let options = LinkOptions {
        window: 1 << 20,
        ..quick()
    };
    let mut inbox = fabric.bind(welcome(0), options).await;
    let outbox = fabric.connect(entry(), options);
    joined(&mut inbox).await;
    until_ready(&outbox).await;
    outbox.send(&text(1, 5 << 20)).unwrap();
    assert_eq!(outbox.send(&text(2, 1)), Err(SendError::Full));
    assert_eq!(received(&mut inbox).await.1, text(1, 5 << 20));
}

async fn successor_is_found(fabric: impl Fabric) {
    let mut first = fabric.bind(Welcome::new(), quick()).await;
    let outbox = fabric.connect(entry(), quick());
    joined(&mut first).await;
    until_ready(&outbox).await;
    first.close("out of memory").await;
    assert_eq!(until_dead(&outbox).await, "out of memory");
    assert_eq!(outbox.send(&abort(1)), Err(SendError::NotReady));
    let mut second = fabric.bind(welcome(1), quick()).await;
    joined(&mut second).await;
    let state = until(&outbox, PeerState::is_ready).await;
    assert!(
        matches!(
            state,
            PeerState::Ready {
                incarnation: 77,
                ..
            }
        ),
        "{state:?}"
    );
    outbox.send(&submit(1)).unwrap();
    assert_eq!(received(&mut second).await.1, submit(1));
}

async fn silent_receiver_is_dead_until_it_speaks(fabric: impl Fabric) {
    let options = LinkOptions {
        silence: Duration::from_millis(100),
        ..quick()
    };
    let mut inbox = fabric.bind(welcome(0), LinkOptions::default()).await;
    let outbox = fabric.connect(entry(), options);
    joined(&mut inbox).await;
    until_ready(&outbox).await;
    // Nobody receives: heartbeats stay without an answer.
    assert!(until_dead(&outbox).await.contains("silent"));
    serving(&mut inbox, until_ready(&outbox)).await;
}

async fn sender_says_when_it_ends(fabric: impl Fabric) {
    let mut inbox = fabric.bind(welcome(0), quick()).await;
    let outbox = fabric.connect(entry(), quick());
    let (peer, _) = joined(&mut inbox).await;
    until_ready(&outbox).await;
    outbox.send(&abort(1)).unwrap();
    drop(outbox);
    assert_eq!(received(&mut inbox).await, (peer, abort(1)));
    assert_eq!(
        left(&mut inbox).await,
        (peer, "the sender is gone".to_owned())
    );
    assert_eq!(inbox.send(peer, &abort(2)), Err(SendError::NotReady));
}

async fn restarted_sender_replaces_itself(fabric: impl Fabric) {
    let mut inbox = fabric.bind(welcome(0), quick()).await;
    let first = fabric.connect(entry(), quick());
    let (old, _) = joined(&mut inbox).await;
    until_ready(&first).await;
    let second = fabric.connect(entry(), quick());
    assert_eq!(
        left(&mut inbox).await,
        (old, "replaced by a successor".to_owned())
    );
    let (new, hello) = joined(&mut inbox).await;
    assert_ne!(new, old);
    assert_eq!((hello.role.as_str(), hello.index), ("entry", 0));
    until_ready(&second).await;
    second.send(&abort(7)).unwrap();
    assert_eq!(received(&mut inbox).await, (new, abort(7)));
}

async fn peers_are_told_apart(fabric: impl Fabric) {
    let mut inbox = fabric.bind(welcome(0), quick()).await;
    let mut links = Vec::new();
    for index in 0..16 {
        let outbox = fabric.connect(Identity::new("entry", index), quick());
        let (peer, hello) = joined(&mut inbox).await;
        assert_eq!(hello.index, index);
        links.push((peer, outbox));
    }
    for (peer, outbox) in &links {
        until_ready(outbox).await;
        outbox.send(&abort(*peer)).unwrap();
    }
    for _ in 0..links.len() {
        let (peer, message) = received(&mut inbox).await;
        assert_eq!(message, abort(peer));
    }
}

async fn calls_go_the_other_way(fabric: impl Fabric) {
    let mut inbox = fabric.bind(welcome(0), quick()).await;
    let outbox = fabric.connect(Identity::new("detokenizer", 0), quick());
    let mut incoming = outbox.incoming().expect("taken once");
    assert!(outbox.incoming().is_none());
    let (peer, _) = joined(&mut inbox).await;
    until_ready(&outbox).await;
    let call = Message::from(Call {
        tag: Default::default(),
        call: 1,
        method: "stats".into(),
        arguments: "{}".into(),
    });
    inbox.send(peer, &call).unwrap();
    assert_eq!(soon(incoming.recv()).await, Some(call));
    let reply = Message::from(Reply {
        tag: Default::default(),
        call: 1,
        ok: true,
        value: "{}".into(),
    });
    outbox.send(&reply).unwrap();
    assert_eq!(received(&mut inbox).await, (peer, reply));
}

async fn closed_outbox_stays_closed(fabric: impl Fabric) {
    let mut inbox = fabric.bind(welcome(0), quick()).await;
    let outbox = fabric.connect(entry(), quick());
    joined(&mut inbox).await;
    until_ready(&outbox).await;
    outbox.close("draining");
    assert_eq!(until_dead(&outbox).await, "draining");
    assert_eq!(outbox.send(&abort(1)), Err(SendError::NotReady));
    assert_eq!(left(&mut inbox).await.1, "draining");
}
