//! A receiver for conformance tests: binds a ZMQ inbox and says what arrives.
//!
//! `inbox_peer ENDPOINT CREDIT SILENCE_MS`
//!
//! Prints `bound ENDPOINT`, `joined PEER ROLE INDEX`, `message PEER KIND BYTES`, `left PEER REASON`.
//! Commands: `pause` and `resume` (stop receiving, go on), `credit PEER N`, `call PEER`, `close REASON`; all but the
//! last are answered with `done`.

use std::error::Error;
use std::io::{BufRead, stdin};
use std::time::Duration;

use llmrt_link::zmq::ZmqInbox;
use llmrt_link::{Event, Inbox, LinkOptions, Welcome};
use llmrt_wire::{Call, Credit};
use tokio::sync::mpsc;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [endpoint, credit, silence] = arguments.as_slice() else {
        return Err("ENDPOINT CREDIT SILENCE_MS".into());
    };
    let welcome = Welcome {
        credit: credit.parse()?,
        ..Welcome::new()
    };
    let options = LinkOptions {
        silence: Duration::from_millis(silence.parse()?),
        ..LinkOptions::default()
    };
    let mut inbox = ZmqInbox::bind(endpoint, welcome, options).await?;
    println!("bound {}", inbox.endpoint());
    let mut commands = commands();
    let mut paused = false;
    loop {
        let command = tokio::select! {
            event = inbox.recv(), if !paused => {
                show(event);
                continue;
            }
            command = commands.recv() => command,
        };
        let Some(command) = command else {
            return Ok(());
        };
        let words: Vec<&str> = command.split(' ').collect();
        match words.as_slice() {
            ["pause"] => paused = true,
            ["resume"] => paused = false,
            ["credit", peer, count] => {
                let tag = Default::default();
                inbox.send(
                    peer.parse()?,
                    &Credit {
                        tag,
                        count: count.parse()?,
                    }
                    .into(),
                )?;
            }
            ["call", peer] => {
                let tag = Default::default();
                let call = Call {
                    tag,
                    call: 1,
                    method: "stats".into(),
                    arguments: "{}".into(),
                };
                inbox.send(peer.parse()?, &call.into())?;
            }
            ["close", ..] => {
                inbox.close(&command["close".len()..]).await;
                return Ok(());
            }
            _ => return Err(format!("unknown command {command}").into()),
        }
        println!("done");
    }
}

fn show(event: Event) {
    match event {
        Event::Joined { peer, hello } => println!("joined {peer} {} {}", hello.role, hello.index),
        Event::Message { peer, message } => {
            println!(
                "message {peer} {:?} {}",
                message.kind(),
                message.encode().len()
            );
        }
        Event::Left { peer, reason } => println!("left {peer} {reason}"),
    }
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
