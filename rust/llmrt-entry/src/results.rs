//! The results inbox: frames of the detokenizers, and whoever looks in.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::time::Instant;

use llmrt_link::{Event, Inbox};
use llmrt_wire::Message;

use crate::control;
use crate::shard::Shard;

/// Hands what comes to `shard`, for as long as it lives.
pub async fn take<I: Inbox>(shard: Rc<Shard>, mut inbox: I) {
    // Others may look in (`llmrt doctor`); the core does not depend on them.
    let mut detokenizers = HashMap::new();
    loop {
        match next(&shard, &mut inbox).await {
            Event::Message {
                message: Message::TextFrame(frame),
                peer,
            } => {
                let step = frame.step;
                if !detokenizers.contains_key(&peer) {
                    tracing::warn!(step, "frame of somebody else than a detokenizer dropped");
                } else {
                    shard.last_frame.set(Some(Instant::now()));
                    shard.router.deliver(frame);
                }
            }
            Event::Message {
                message: Message::Call(call),
                peer,
            } => {
                let reply = control::reply(&call, control::look(&shard, &call));
                if let Err(error) = inbox.send(peer, &reply.into()) {
                    tracing::warn!(%error, method = call.method, "call not answered");
                }
            }
            Event::Message { message, .. } => {
                tracing::debug!(kind = ?message.kind(), "message that has no business here");
            }
            Event::Joined { hello, peer } => {
                tracing::debug!(role = hello.role, index = hello.index, "joined");
                if hello.role == "detokenizer" {
                    detokenizers.insert(peer, hello.index);
                    shard.core.detokenizer_joined(hello.index);
                }
            }
            Event::Left { reason, peer } => {
                if let Some(index) = detokenizers.remove(&peer) {
                    shard.core.detokenizer_left(index, &reason);
                    shard.detokenizer_lost(index as usize, &reason);
                }
            }
        }
    }
}

/// The next event; what those before it brought leaves before it is waited for.
async fn next(shard: &Shard, inbox: &mut impl Inbox) -> Event {
    let mut next = pin!(inbox.recv());
    poll_fn(|cx| {
        let poll = next.as_mut().poll(cx);
        if poll.is_pending() {
            shard.router.flush();
        }
        poll
    })
    .await
}
