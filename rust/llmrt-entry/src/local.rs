//! Requests made inside the worker's own process: answered by the same service as those of a connection.
//!
//! The answers of one [`LocalClient`] share a bell, a descriptor that is readable while any of them has news. Whoever
//! waits on it, a thread or an event loop, wakes up once for all answers of a step.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Either, Full};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{Receiver, Sender, UnboundedSender, channel};

use crate::http::HttpService;
use crate::shard::{Command, Shard};

/// Pieces of an answer that may wait here; more wait in the response's own counted buffer.
const PIECES: usize = 16;

/// Makes requests to the worker of this process.
#[derive(Debug)]
pub struct LocalClient {
    commands: UnboundedSender<Command>,
    bell: Arc<Bell>,
    next: AtomicU64,
}

impl LocalClient {
    pub(crate) fn new(commands: UnboundedSender<Command>) -> io::Result<Self> {
        Ok(Self {
            commands,
            bell: Arc::new(Bell::new()?),
            next: AtomicU64::new(0),
        })
    }

    /// Sends a request with a JSON body. Nothing waits: the answer says in [`Self::ready`] when it has news.
    ///
    /// # Errors
    /// `method` or `path` is none.
    pub fn request(
        &self,
        method: &str,
        path: &str,
        body: Bytes,
    ) -> Result<LocalResponse, http::Error> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(CONTENT_TYPE, "application/json")
            .body(body)?;
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        let (parts, taken) = channel(PIECES);
        let ring = Ring(self.bell.clone(), key);
        // A worker that has ended drops the request, and with that the answer is at its end.
        let _ = self.commands.send(Command::Request(Box::new(LocalRequest {
            request,
            reply: Reply { parts, ring },
        })));
        Ok(LocalResponse {
            key,
            parts: taken,
            status: None,
            ended: false,
        })
    }

    /// Keys of the answers that have news since the last call; the bell is silent then.
    pub fn ready(&self) -> Vec<u64> {
        self.bell.take()
    }
}

impl AsFd for LocalClient {
    /// Readable while [`LocalClient::ready`] has something to tell; not to be read from.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.ear.as_fd()
    }
}

/// An answer as it arrives. Dropping it is the one way to cancel its request.
#[derive(Debug)]
pub struct LocalResponse {
    key: u64,
    parts: Receiver<Part>,
    status: Option<StatusCode>,
    ended: bool,
}

impl LocalResponse {
    /// Its key in [`LocalClient::ready`].
    pub fn key(&self) -> u64 {
        self.key
    }

    /// The status, once [`Self::take`] has met the head.
    pub fn status(&self) -> Option<u16> {
        self.status.map(|status| status.as_u16())
    }

    /// Whether [`Self::take`] has met the end. An answer that ends without a status never began.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// The part of the body that has arrived since the last call.
    pub fn take(&mut self) -> BytesMut {
        let mut body = BytesMut::new();
        loop {
            match self.parts.try_recv() {
                Ok(Part::Head(status)) => self.status = Some(status),
                Ok(Part::Body(piece)) => body.extend_from_slice(&piece),
                Err(TryRecvError::Empty) => return body,
                Err(TryRecvError::Disconnected) => {
                    self.ended = true;
                    return body;
                }
            }
        }
    }
}

/// A request on its way to the shard.
#[derive(Debug)]
pub struct LocalRequest {
    request: Request<Bytes>,
    reply: Reply,
}

impl LocalRequest {
    /// Answers it on the shard, until its caller loses interest.
    pub(crate) async fn answer(self, shard: Rc<Shard>) {
        let Self { request, reply } = self;
        let request = request.map(|body| Either::Right(Full::new(body)));
        let filled = async {
            let _slot = shard.connections.enter().await;
            let response = HttpService::new(shard.clone()).answer(request).await;
            let (head, mut body) = response.into_parts();
            reply.send(Part::Head(head.status)).await;
            while let Some(Ok(frame)) = body.frame().await {
                if let Ok(piece) = frame.into_data() {
                    reply.send(Part::Body(piece)).await;
                }
            }
        };
        tokio::select! {
            () = filled => {}
            () = reply.parts.closed() => {}
        }
    }
}

#[derive(Debug)]
enum Part {
    Head(StatusCode),
    Body(Bytes),
}

/// Where an answer goes. The order matters: the bell rings last when the answer has ended.
#[derive(Debug)]
struct Reply {
    parts: Sender<Part>,
    ring: Ring,
}

impl Reply {
    async fn send(&self, part: Part) {
        // The caller may have left; then there is nobody to ring for.
        if self.parts.send(part).await.is_ok() {
            self.ring.0.ring(self.ring.1);
        }
    }
}

/// Rings for an answer when it is dropped.
#[derive(Debug)]
struct Ring(Arc<Bell>, u64);

impl Drop for Ring {
    fn drop(&mut self) {
        self.0.ring(self.1);
    }
}

/// A set of keys and a descriptor that is readable while it is not empty.
#[derive(Debug)]
struct Bell {
    keys: Mutex<HashSet<u64>>,
    ear: UnixStream,
    hammer: UnixStream,
}

impl Bell {
    fn new() -> io::Result<Self> {
        let (ear, hammer) = UnixStream::pair()?;
        ear.set_nonblocking(true)?;
        hammer.set_nonblocking(true)?;
        Ok(Self {
            keys: Mutex::default(),
            ear,
            hammer,
        })
    }

    fn ring(&self, key: u64) {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if keys.is_empty() {
            // At most one byte is under way, so that there is always room for it.
            let _ = (&self.hammer).write(&[0]);
        }
        keys.insert(key);
    }

    fn take(&self) -> Vec<u64> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if !keys.is_empty() {
            let _ = (&self.ear).read(&mut [0]);
        }
        keys.drain().collect()
    }
}
