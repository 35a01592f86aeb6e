//! A streamed response with several choices: one request for each, and one end for all.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame, SizeHint};

use super::guard::RequestGuard;
use super::outlet::End;
use crate::api::{ApiError, Usage};
use crate::server::Stake;

/// Writes what stands behind the events of all choices.
pub trait Closing {
    /// Appends the closing events when every choice has finished; `usages` are theirs, in order.
    fn finish(&self, usages: &[Usage], out: &mut BytesMut);
    /// Appends the closing events when a choice failed, which ends them all.
    fn fail(&self, error: &ApiError, out: &mut BytesMut);
}

/// Body of a response whose choices are requests of their own. Their events follow each other in the order in which
/// they came; dropping the body cancels every request that is open.
pub struct ChoicesBody {
    guards: Vec<RequestGuard>,
    closing: Box<dyn Closing>,
    /// The choice that is asked first, so that none starves the others.
    next: usize,
    done: bool,
    stake: Option<Stake>,
}

impl Drop for ChoicesBody {
    fn drop(&mut self) {
        if let Some(stake) = &mut self.stake
            && self.done
        {
            stake.fulfil();
        }
    }
}

impl ChoicesBody {
    pub fn new(guards: Vec<RequestGuard>, closing: Box<dyn Closing>) -> Self {
        Self {
            guards,
            closing,
            next: 0,
            done: false,
            stake: None,
        }
    }

    /// Gives up `stake` with the response: fulfilled when its last event was written by then.
    pub fn keep(&mut self, stake: Stake) {
        self.stake = Some(stake);
    }

    /// A piece of some choice that has one; `None` inside when all have ended.
    fn poll_choices(&mut self, cx: &Context<'_>) -> Poll<Option<Bytes>> {
        let count = self.guards.len();
        let mut ended = 0;
        for turn in 0..count {
            let choice = (self.next + turn) % count;
            match self.guards[choice].poll_piece(cx) {
                Poll::Ready(Some(piece)) => {
                    self.next = choice;
                    return Poll::Ready(Some(piece));
                }
                Poll::Ready(None) => {
                    // Its reader has all of it; the response goes on for the others.
                    self.guards[choice].outlet.borrow_mut().stalled = None;
                    ended += 1;
                }
                Poll::Pending => {}
            }
        }
        if ended == count {
            Poll::Ready(None)
        } else {
            Poll::Pending
        }
    }

    /// The first choice that failed, with its error.
    fn failure(&self) -> Option<(usize, ApiError)> {
        let failed = |(choice, guard): (usize, &RequestGuard)| match &guard.outlet.borrow().end {
            Some(End::Failed(error)) => Some((choice, error.clone())),
            _ => None,
        };
        self.guards.iter().enumerate().find_map(failed)
    }

    /// Ends the response with what waits of the failed choice and its error. The others are cancelled.
    fn fail(&mut self, choice: usize, error: &ApiError) -> Bytes {
        let mut out = self.guards[choice].outlet.borrow_mut().waiting.split();
        self.closing.fail(error, &mut out);
        self.guards.clear();
        self.done = true;
        out.freeze()
    }

    fn finish(&mut self) -> Bytes {
        let mut out = BytesMut::new();
        let usage = |guard: &RequestGuard| guard.outlet.borrow().usage;
        let usages: Vec<Usage> = self.guards.iter().map(usage).collect();
        self.closing.finish(&usages, &mut out);
        self.done = true;
        out.freeze()
    }
}

impl Body for ChoicesBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.done {
            return Poll::Ready(None);
        }
        let piece = if let Some((choice, error)) = self.failure() {
            self.fail(choice, &error)
        } else {
            match self.poll_choices(cx) {
                Poll::Ready(Some(piece)) => piece,
                Poll::Ready(None) => self.finish(),
                Poll::Pending => return Poll::Pending,
            }
        };
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.done
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
