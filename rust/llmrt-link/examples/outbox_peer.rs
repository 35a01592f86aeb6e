//! A sender for conformance tests: connects a ZMQ outbox and does what standard input says.
//!
//! `outbox_peer ENDPOINT ROLE INDEX HEARTBEAT_MS SILENCE_MS WINDOW`
//!
//! Commands: `submit N`, `abort ID`, `text STEP BYTES`, `flood BYTES` (frames until one is refused),
//! `reply CALL`, `close REASON`. Each is answered with `sent N` or `refused REASON`. In between stand
//! `connecting`, `ready INCARNATION INFO`, `dead REASON` and `incoming KIND` as they happen.

use std::error::Error;
use std::io::{BufRead, stdin};
use std::time::Duration;

use llmrt_link::zmq;
use llmrt_link::{Identity, LinkOptions, Outbox, PeerState};
use llmrt_wire::{Abort, Message, Output, Reply, Request, RequestId, Sampling, Submit, TextFrame};
use tokio::sync::mpsc;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [endpoint, role, index, heartbeat, silence, window] = arguments.as_slice() else {
        return Err("ENDPOINT ROLE INDEX HEARTBEAT_MS SILENCE_MS WINDOW".into());
    };
    let options = LinkOptions {
        heartbeat: Duration::from_millis(heartbeat.parse()?),
        silence: Duration::from_millis(silence.parse()?),
        window: window.parse()?,
        ..LinkOptions::default()
    };
    let outbox = zmq::connect(endpoint, Identity::new(role, index.parse()?), options)?;
    let mut state = outbox.state();
    let mut incoming = outbox.incoming().ok_or("taken")?;
    let mut commands = commands();
    show(&state.borrow_and_update());
    loop {
        tokio::select! {
            changed = state.changed() => {
                changed?;
                show(&state.borrow_and_update());
            }
            Some(message) = incoming.recv() => println!("incoming {:?}", message.kind()),
            command = commands.recv() => match command {
                Some(command) => println!("{}", obey(&outbox, &command)?),
                None => return Ok(()),
            },
        }
    }
}

fn show(state: &PeerState) {
    match state {
        PeerState::Connecting => println!("connecting"),
        PeerState::Ready { incarnation, info } => println!("ready {incarnation} {info}"),
        PeerState::Dead { reason } => println!("dead {reason}"),
    }
}

fn obey(outbox: &impl Outbox, command: &str) -> Result<String, Box<dyn Error>> {
    let (verb, rest) = command.split_once(' ').unwrap_or((command, ""));
    let result = match verb {
        "submit" => outbox.send(&submit(rest.parse()?)),
        "abort" => {
            let ids = vec![RequestId(rest.parse()?)];
            outbox.send(
                &Abort {
                    ids,
                    ..Abort::default()
                }
                .into(),
            )
        }
        "text" => {
            let (step, bytes) = rest.split_once(' ').ok_or("text STEP BYTES")?;
            outbox.send(&text(step.parse()?, bytes.parse()?))
        }
        "flood" => {
            let bytes = rest.parse()?;
            let mut count = 0;
            while outbox.send(&text(count, bytes)).is_ok() {
                count += 1;
            }
            return Ok(format!("sent {count}"));
        }
        "reply" => {
            let call = rest.parse()?;
            let tag = Default::default();
            outbox.send(
                &Reply {
                    tag,
                    call,
                    ok: true,
                    value: "{}".into(),
                }
                .into(),
            )
        }
        "close" => {
            outbox.close(rest);
            Ok(())
        }
        _ => return Err(format!("unknown command {verb}").into()),
    };
    Ok(match result {
        Ok(()) => "sent 1".to_owned(),
        Err(error) => format!("refused {error}"),
    })
}

fn submit(count: u64) -> Message {
    let request = |id| Request {
        id: RequestId(id),
        prompt: vec![1, 2, 3].into(),
        sampling: Sampling::default(),
        output: Output::default(),
        priority: 0,
        cache_salt: String::new(),
        deadline_ms: None,
    };
    Submit {
        requests: (0..count).map(request).collect(),
        ..Submit::default()
    }
    .into()
}

fn text(step: u64, bytes: usize) -> Message {
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

/// Lines of standard input; a thread of their own, because reading a terminal or pipe blocks.
fn commands() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        for line in stdin().lock().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    receiver
}
