//! A node's connection to the scheduler.

use bytes::Bytes;
use llmrt_link::transport::{Connector, Pipe, Source};
use llmrt_wire::{Message, RequestId};
use tokio::sync::mpsc::Receiver;

use crate::outgoing::Outgoing;
use crate::record::{Record, cut};

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
    loop {
        tokio::select! {
            frame = frames.recv() => {
                let Some(frame) = frame else {
                    return "the node has closed it".to_owned();
                };
                if let Err(reason) = judge(&frame, worker) {
                    // With the channel alone closed it would go on by the next one.
                    outgoing.end(&reason);
                    return reason;
                }
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

/// Checks that a frame is what entry worker `worker` says to a scheduler: by the greeting of another worker a node would
/// take that one's place, and by its numbers or the words of a detokenizer end its requests.
fn judge(frame: &[u8], worker: u16) -> Result<(), String> {
    let message = Message::decode(frame).map_err(|error| {
        let mut reason = format!("what it sends to the scheduler cannot be read: {error}");
        cut(&mut reason);
        reason
    })?;
    let is_own = |id: RequestId| id.worker() == worker;
    let fits = match &message {
        Message::Hello(hello) => hello.role == "entry" && hello.index == u32::from(worker),
        Message::Submit(submit) => submit.requests.iter().all(|request| is_own(request.id)),
        Message::Abort(abort) => abort.ids.iter().copied().all(is_own),
        Message::Call(_) | Message::Heartbeat(_) | Message::Dead(_) => true,
        _ => false,
    };
    if fits {
        return Ok(());
    }
    let kind = message.kind();
    Err(format!(
        "it sends the scheduler a {kind:?} that is not for entry worker {worker} to send"
    ))
}
