//! What a response owns: its place in the router, which ends with it.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use llmrt_wire::RequestId;

use super::Router;
use super::outlet::{End, Form, Outlet};
use crate::api::{Told, Usage};
use crate::gate::Permit;
use crate::server::{Stake, Wire};

/// Most bytes that leave in one piece. More would only wait inside hyper instead of in the counted buffer.
pub const PIECE: usize = 16 << 10;

/// An open request. Dropping it is the one way to cancel: the table entry goes, the scheduler is told unless the
/// request has ended, and the permit returns.
pub struct RequestGuard {
    pub(super) id: RequestId,
    pub(super) outlet: Rc<RefCell<Outlet>>,
    pub(super) router: Rc<Router>,
    /// Given back behind all else.
    #[expect(dead_code, reason = "held for its drop")]
    pub(super) permit: Permit,
}

/// All of an answer that was not streamed.
pub struct WholeAnswer {
    pub text: String,
    pub told: Told,
    pub usage: Usage,
    pub end: End,
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.router.left(self.id);
    }
}

impl RequestGuard {
    /// Waits for the end of a request of [`super::Form::Text`].
    pub async fn answer(&self) -> WholeAnswer {
        let end = poll_fn(|cx| {
            let mut outlet = self.outlet.borrow_mut();
            match outlet.end.take() {
                Some(end) => Poll::Ready(end),
                None => {
                    outlet.await_more(cx);
                    Poll::Pending
                }
            }
        })
        .await;
        let mut outlet = self.outlet.borrow_mut();
        // Rows are whole characters, so their sum is text.
        let text = String::from_utf8(outlet.waiting.split().into()).unwrap_or_default();
        let told = match &mut outlet.form {
            Form::Text(told) => told.take(),
            Form::Events(_) => None,
        };
        WholeAnswer {
            text,
            told: told.map(|told| *told).unwrap_or_default(),
            usage: outlet.usage,
            end,
        }
    }

    /// The next piece that waits; `None` inside when the request has ended and all of it was taken.
    pub(super) fn poll_piece(&self, cx: &Context<'_>) -> Poll<Option<Bytes>> {
        let router = &self.router;
        let mut outlet = self.outlet.borrow_mut();
        if !outlet.waiting.is_empty() {
            let piece = outlet.waiting.len().min(PIECE);
            let piece = outlet.waiting.split_to(piece).freeze();
            if outlet.stalled.is_some() {
                let still =
                    outlet.end.is_some() || outlet.waiting.len() > router.limits.buffer_bytes;
                outlet.stalled = still.then(Instant::now);
            }
            return Poll::Ready(Some(piece));
        }
        if outlet.end.is_some() {
            return Poll::Ready(None);
        }
        outlet.await_more(cx);
        Poll::Pending
    }

    /// Makes the body of a streamed response.
    pub fn into_body(self) -> EventBody {
        EventBody {
            guard: self,
            stake: None,
            wire: None,
        }
    }
}

impl Outlet {
    fn await_more(&mut self, cx: &Context<'_>) {
        match &mut self.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
    }
}

/// Body of a streamed response: whatever has arrived since it was last asked.
pub struct EventBody {
    guard: RequestGuard,
    stake: Option<Stake>,
    /// The way past hyper, until it is open.
    wire: Option<Wire>,
}

impl EventBody {
    /// Gives up `stake` with the response: fulfilled when its last event was written by then.
    pub fn keep(&mut self, stake: Stake) {
        self.stake = Some(stake);
    }

    /// Lets results leave by `wire` once the head has.
    pub fn set_wire(&mut self, wire: Option<Wire>) {
        self.wire = wire;
    }
}

impl Drop for EventBody {
    fn drop(&mut self) {
        if let Some(stake) = &mut self.stake
            && self.guard.outlet.borrow().end.is_some()
        {
            stake.fulfil();
        }
    }
}

impl Body for EventBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        // Whoever polls has the head in its hands, and gives it to the socket before it pauses.
        if let Some(wire) = self.wire.take() {
            self.guard.outlet.borrow_mut().wire = Some(wire);
        }
        let piece = self.guard.poll_piece(cx);
        piece.map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        // END_STREAM then rides on the last piece: some HTTP/2 clients reset a stream that is open after `[DONE]`.
        let outlet = self.guard.outlet.borrow();
        outlet.end.is_some() && outlet.waiting.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
