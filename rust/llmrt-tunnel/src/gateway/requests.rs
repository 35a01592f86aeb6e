//! A node's connection to the scheduler.

use bytes::Bytes;
use llmrt_link::transport::{Connector, Pipe, Source};
use llmrt_wire::Message;
use tokio::sync::mpsc::Receiver;

use crate::outgoing::Outgoing;
use crate::record::Record;

/// Copies frames between `channel` of a node and a connection of its own, until either side has ended; then closes the
/// other.
pub async fn carry(
    mut connector: impl Connector,
    worker: u16,
    channel: u32,
    mut frames: Receiver<Bytes>,
    outgoing: Outgoing,
) {
    let reason = match connector.connect().await {
        Ok((mut pipe, mut source)) => {
            copy(
                worker,
                channel,
                &mut *pipe,
                &mut source,
                &mut frames,
                &outgoing,
            )
            .await
        }
        Err(reason) => reason,
    };
    outgoing.push(Record::Close { channel, reason });
}

async fn copy(
    worker: u16,
    channel: u32,
    pipe: &mut dyn Pipe,
    source: &mut impl Source,
    frames: &mut Receiver<Bytes>,
    outgoing: &Outgoing,
) -> String {
    let mut greeted = false;
    loop {
        tokio::select! {
            frame = frames.recv() => {
                let Some(frame) = frame else {
                    return "the node has closed it".to_owned();
                };
                if !greeted && !is_of(&frame, worker) {
                    return format!("a node must greet as entry worker {worker}, its place");
                }
                greeted = true;
                if !pipe.push(frame.into()) {
                    return "the scheduler does not take any more".to_owned();
                }
            }
            frame = source.next() => match frame {
                Ok(frame) => if !outgoing.push(Record::Data { channel, frame }) {
                    return "the tunnel has ended".to_owned();
                },
                Err(reason) => return reason,
            },
        }
    }
}

/// Whether a first frame is the greeting of entry worker `worker`: by the number of another one a node would take that
/// one's place.
fn is_of(frame: &[u8], worker: u16) -> bool {
    match Message::decode(frame) {
        Ok(Message::Hello(hello)) => hello.role == "entry" && hello.index == u32::from(worker),
        _ => false,
    }
}
