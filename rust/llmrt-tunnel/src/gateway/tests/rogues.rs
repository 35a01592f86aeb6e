//! Nodes that know the secret and do as they like.

use llmrt_wire::{Ended, Hello, Reply, Request, Submit};
use tokio::io::AsyncReadExt;

use super::*;
use crate::join::Answer;
use crate::line::Line;
use crate::record::Record;

/// A node that does as it likes behind its introduction.
async fn rogue(rig: &Rig) -> Line {
    let (session, _) = rig.target().join(None).await.unwrap();
    Line::open(session, LONG)
}

fn hello(role: &str, index: u32) -> Vec<u8> {
    let hello = Hello {
        tag: Default::default(),
        version: llmrt_wire::VERSION,
        role: role.to_owned(),
        index,
        incarnation: 1,
    };
    Message::from(hello).encode()
}

fn submit(id: RequestId) -> Vec<u8> {
    let request = Request {
        id,
        prompt: vec![1].into(),
        sampling: Default::default(),
        output: Default::default(),
        priority: 0,
        cache_salt: String::new(),
        deadline_ms: None,
    };
    let requests = vec![request];
    let submit = Submit {
        requests,
        ..Submit::default()
    };
    Message::from(submit).encode()
}

/// What entry worker 1 must not send to a scheduler.
fn forged() -> Vec<Vec<u8>> {
    let (own, other) = (RequestId::new(1, 0, 1), RequestId::new(0, 0, 1));
    let abort = Abort {
        ids: vec![own, other],
        ..Abort::default()
    };
    let ended = Ended {
        ids: vec![own],
        ..Ended::default()
    };
    let reply = Reply {
        tag: Default::default(),
        call: 1,
        ok: true,
        value: String::new(),
    };
    vec![
        hello("entry", 0),
        hello("detokenizer", 0),
        hello("detokenizer", 1),
        submit(other),
        Message::from(abort).encode(),
        Message::from(ended).encode(),
        Message::from(reply).encode(),
        b"no message".to_vec(),
    ]
}

/// Sends `frames` to the scheduler, and reads until the gateway has had enough.
async fn say(line: &mut Line, frames: Vec<Vec<u8>>) {
    let channel = 1;
    line.outgoing().push(Record::Open { channel });
    for frame in frames {
        let frame = frame.into();
        line.outgoing().push(Record::Data { channel, frame });
    }
    let ended = async { while line.next().await.is_ok() {} };
    timeout(LONG, ended).await.unwrap();
}

#[test]
fn a_node_that_greets_as_another_worker_is_dropped_before_it_joins() {
    here(async {
        let mut rig = Rig::new(30.0).await;
        let mut line = rogue(&rig).await;
        say(&mut line, vec![hello("entry", 0)]).await;
        // Nobody has come before a good node does.
        let _worker = Worker::new(rig.target()).await;
        assert_eq!(joined(rig.event().await), ("entry".to_owned(), 1));
    });
}

#[test]
fn a_node_that_speaks_for_others_is_dropped_and_nothing_of_it_is_heard() {
    here(async {
        let mut rig = Rig::new(30.0).await;
        let requests = format!("ipc://{}", rig.directory.join("requests").display());
        let identity = Identity::new("detokenizer", 0);
        let _victim = zmq::connect(&requests, identity, LinkOptions::default()).unwrap();
        assert_eq!(joined(rig.event().await), ("detokenizer".to_owned(), 0));
        for frame in forged() {
            let mut line = rogue(&rig).await;
            let saying = say(&mut line, vec![hello("entry", 1), frame]);
            let hearing = async {
                let Event::Joined { peer, .. } = rig.event().await else {
                    panic!("it has greeted well");
                };
                let next = rig.event().await;
                let is_its_end = matches!(next, Event::Left { peer: gone, .. } if gone == peer);
                assert!(is_its_end, "{next:?}");
            };
            tokio::join!(saying, hearing);
        }
        assert_eq!(rig.places.stats()["nodes"], 0);
    });
}

#[test]
fn what_cannot_be_read_is_not_repeated_to_the_end() {
    here(async {
        let rig = Rig::new(30.0).await;
        let stream = TcpStream::connect(&rig.address).await.unwrap();
        let mut session = Session::initiate(stream, &secret()).await.unwrap();
        // Each of them takes four bytes in an answer that repeats them.
        let join = json!({"version": "\"".repeat(30_000)}).to_string();
        session.send(join.as_bytes()).await.unwrap();
        let answer = session.receive().await.unwrap();
        let Answer::Refused(refused) = serde_json::from_slice(&answer).unwrap() else {
            panic!("it was let in");
        };
        assert!(refused.reason.contains("cannot be read") && !refused.again);
        assert!(session.send(&[0; 1 << 16]).await.is_err(), "one piece");
    });
}

#[test]
fn a_node_that_floods_or_falls_silent_is_dropped() {
    here(async {
        let rig = Rig::new(1.0).await;
        let mut line = rogue(&rig).await;
        for channel in 0..40 {
            let channel = channel * 2 + 1;
            line.outgoing().push(Record::Open { channel });
        }
        let ended = async { while line.next().await.is_ok() {} };
        timeout(LONG, ended).await.unwrap();
        let (mut session, _) = rig.target().join(None).await.unwrap();
        let mut heard = Vec::new();
        let ended = session.stream.read_to_end(&mut heard);
        timeout(LONG, ended).await.unwrap().unwrap();
        assert_eq!(rig.places.stats()["nodes"], 0);
    });
}
