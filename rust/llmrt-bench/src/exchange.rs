//! One request, from its first byte to `[DONE]`, with the clock running.

use std::cell::RefCell;
use std::time::Instant;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Method, StatusCode, Uri};

use crate::client::{Client, Fault, status_fault};
use crate::record::Recorder;
use crate::sse::{Event, Scanner, Usage};

/// A request that was answered to its end.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    pub started: Instant,
    /// First and last chunk with text; `None` if the answer was empty.
    pub text: Option<(Instant, Instant)>,
    pub ended: Instant,
    /// Chunks with text.
    pub chunks: u64,
    pub usage: Option<Usage>,
}

/// Sends a body and reads the stream that answers it; each chunk goes to the recorder as it arrives.
///
/// # Errors
/// An error status, an error event, an early end, or bytes that are no such stream.
pub async fn exchange(
    client: &Client,
    uri: Uri,
    body: Bytes,
    recorder: &RefCell<Recorder>,
) -> Result<Answer, Fault> {
    let started = Instant::now();
    let mut reply = client.send(Method::POST, uri, body).await?;
    if reply.status != StatusCode::OK {
        let body = reply.body.read_all().await?;
        return Err(status_fault(reply.status, &body));
    }
    let kind = reply
        .headers
        .get(CONTENT_TYPE)
        .map_or(&b""[..], |v| v.as_bytes());
    if !kind.starts_with(b"text/event-stream") {
        let kind = String::from_utf8_lossy(kind);
        let message = format!("expected text/event-stream, got {kind:?}");
        return Err(Fault::new("garbage", message));
    }
    let mut scanner = Scanner::new();
    let mut reading = Reading::new(started);
    while let Some(bytes) = reply.body.data().await {
        let bytes = match bytes {
            Ok(bytes) => bytes,
            // The answer was complete; only its connection was not closed by the book.
            Err(_) if reading.done.is_some() => break,
            Err(fault) => return Err(fault),
        };
        let now = Instant::now();
        let mut recorder = recorder.borrow_mut();
        scanner.feed(&bytes, |event| reading.take(event, now, &mut recorder));
        if let Some(fault) = reading.fault {
            return Err(fault);
        }
    }
    reading.answer()
}

/// What has been seen of a stream.
struct Reading {
    started: Instant,
    text: Option<(Instant, Instant)>,
    chunks: u64,
    usage: Option<Usage>,
    done: Option<Instant>,
    fault: Option<Fault>,
}

impl Reading {
    fn new(started: Instant) -> Self {
        Self {
            started,
            text: None,
            chunks: 0,
            usage: None,
            done: None,
            fault: None,
        }
    }

    fn take(&mut self, event: Event, now: Instant, recorder: &mut Recorder) {
        if self.done.is_some() || self.fault.is_some() {
            return;
        }
        match event {
            Event::Chunk(chunk) => {
                if chunk.text {
                    recorder.chunk(now, self.text.map(|(_, last)| now - last));
                    self.text = Some((self.text.map_or(now, |(first, _)| first), now));
                    self.chunks += 1;
                }
                self.usage = chunk.usage.or(self.usage);
            }
            Event::Done => self.done = Some(now),
            Event::Error(message) => self.fault = Some(Fault::new("error_event", message)),
            Event::Garbage(quote) => {
                let message = format!("not an event of an OpenAI stream: {quote}");
                self.fault = Some(Fault::new("garbage", message));
            }
        }
    }

    fn answer(self) -> Result<Answer, Fault> {
        let Some(ended) = self.done else {
            return Err(Fault::new("early_close", "the stream ended without [DONE]"));
        };
        Ok(Answer {
            started: self.started,
            text: self.text,
            ended,
            chunks: self.chunks,
            usage: self.usage,
        })
    }
}
