//! Responses and their bodies.

use std::any::Any;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use hyper::body::{Frame, SizeHint};

use crate::api::ApiError;
use crate::router::{ChoicesBody, EventBody, PIECE};
use crate::server::{Deadline, Hangup, Stake};

pub type Response = http::Response<Body>;

/// Body of a response.
pub enum Body {
    Whole(Whole),
    Events(EventBody),
    Choices(ChoicesBody),
}

/// A body that is known to its end.
pub struct Whole {
    bytes: Bytes,
    /// Hangs up when the reader takes no piece in time.
    deadline: Option<Deadline>,
    /// What counts as used until the body has left.
    _held: Option<Box<dyn Any>>,
    /// Fulfilled with the last piece.
    stake: Option<Stake>,
}

impl Body {
    /// Keeps `held` until the body has left: what waits for a reader is bounded by what bounds that.
    pub fn holding(self, held: impl Any) -> Self {
        match self {
            Self::Whole(whole) => Self::Whole(Whole {
                _held: Some(Box::new(held)),
                ..whole
            }),
            events => events,
        }
    }

    /// Gives the reader of a whole body so long for each piece. To be called where the response is carried.
    pub fn watch(&mut self, patience: Duration) {
        if let Self::Whole(whole) = self {
            whole.deadline = Some(Deadline::new(Hangup::current(), patience));
        }
    }

    /// Gives up `stake` with the response: fulfilled when all of it was handed over by then.
    pub fn keep(&mut self, mut stake: Stake) {
        match self {
            Self::Whole(whole) => {
                if whole.bytes.is_empty() {
                    stake.fulfil();
                }
                whole.stake = Some(stake);
            }
            Self::Events(events) => events.keep(stake),
            Self::Choices(choices) => choices.keep(stake),
        }
    }

    /// Lets the chunks of a streamed body leave past hyper. To be called where the response is carried, and only when
    /// hyper would send the body in chunks.
    pub fn shorten(&mut self) {
        if let Self::Events(events) = self {
            events.set_wire(Hangup::current().wire());
        }
    }
}

impl<B: Into<Bytes>> From<B> for Body {
    fn from(bytes: B) -> Self {
        Self::Whole(Whole {
            bytes: bytes.into(),
            deadline: None,
            _held: None,
            stake: None,
        })
    }
}

impl Whole {
    fn next(&mut self) -> Option<Bytes> {
        if self.bytes.is_empty() {
            return None;
        }
        if let Some(deadline) = &self.deadline {
            deadline.renew();
        }
        let piece = self.bytes.split_to(self.bytes.len().min(PIECE));
        if self.bytes.is_empty()
            && let Some(stake) = &mut self.stake
        {
            stake.fulfil();
        }
        Some(piece)
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(whole) => Poll::Ready(whole.next().map(|piece| Ok(Frame::data(piece)))),
            Self::Events(events) => Pin::new(events).poll_frame(cx),
            Self::Choices(choices) => Pin::new(choices).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(whole) => whole.bytes.is_empty(),
            Self::Events(events) => events.is_end_stream(),
            Self::Choices(choices) => choices.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(whole) => SizeHint::with_exact(whole.bytes.len() as u64),
            Self::Events(events) => events.size_hint(),
            Self::Choices(choices) => choices.size_hint(),
        }
    }
}

/// A JSON answer.
pub fn json(status: StatusCode, body: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// An error answer.
pub fn error(error: &ApiError) -> Response {
    let mut response = Response::new(Body::from(error.body()));
    *response.status_mut() = error.status();
    error.write_headers(response.headers_mut());
    response
}
