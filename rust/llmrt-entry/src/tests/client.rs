//! A small HTTP client for both protocols.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, spawn_local};

use crate::server::LocalExecutor;

pub const COMPLETIONS: &str = "/v1/completions";

/// Versions of HTTP that every behaviour is tested with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Http1,
    Http2,
}

pub const BOTH: [Version; 2] = [Version::Http1, Version::Http2];

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// One connection.
pub struct Client {
    sender: Sender,
    connection: JoinHandle<()>,
}

impl Client {
    pub async fn new(address: SocketAddr, version: Version) -> Self {
        Self::with_window(address, version, 1 << 20).await
    }

    /// A client that lets the server send `window` bytes per HTTP/2 stream before it reads.
    pub async fn with_window(address: SocketAddr, version: Version, window: u32) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let io = TokioIo::new(stream);
        match version {
            Version::Http1 => {
                let (sender, connection) = http1::handshake(io).await.unwrap();
                let connection = spawn_local(async move { drop(connection.await) });
                Self {
                    sender: Sender::Http1(sender),
                    connection,
                }
            }
            Version::Http2 => {
                let mut builder = http2::Builder::new(LocalExecutor);
                builder.initial_stream_window_size(window);
                let (sender, connection) = builder.handshake(io).await.unwrap();
                let connection = spawn_local(async move { drop(connection.await) });
                Self {
                    sender: Sender::Http2(sender),
                    connection,
                }
            }
        }
    }

    /// Closes the socket without a word.
    pub fn hang_up(self) {
        self.connection.abort();
    }

    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Answer {
        let sent = match &mut self.sender {
            Sender::Http1(sender) => {
                sender.ready().await.unwrap();
                sender.send_request(request).await
            }
            Sender::Http2(sender) => {
                sender.ready().await.unwrap();
                sender.send_request(request).await
            }
        };
        Answer::new(sent.unwrap())
    }

    pub async fn request(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        // HTTP/2 takes the authority from the address, HTTP/1.1 wants it as a field.
        let mut request = Request::builder().method(method);
        request = match self.sender {
            Sender::Http1(_) => request.uri(path).header("host", "test"),
            Sender::Http2(_) => request.uri(format!("http://test{path}")),
        };
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Full::from(body.to_vec())).unwrap())
            .await
    }

    pub async fn get(&mut self, path: &str) -> Answer {
        self.request(Method::GET, path, &[], b"").await
    }

    pub async fn post(&mut self, path: &str, body: &Value) -> Answer {
        let json = [("content-type", "application/json")];
        self.request(Method::POST, path, &json, body.to_string().as_bytes())
            .await
    }
}

/// A response whose head has arrived.
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// Comments among the events so far.
    pub comments: usize,
    body: Incoming,
    /// Bytes of an event that is not complete.
    rest: Vec<u8>,
}

impl Answer {
    fn new(response: http::Response<Incoming>) -> Self {
        let (head, body) = response.into_parts();
        Self {
            status: head.status,
            headers: head.headers,
            comments: 0,
            body,
            rest: Vec::new(),
        }
    }

    pub async fn bytes(self) -> Bytes {
        self.whole().await.unwrap()
    }

    /// The whole body, unless it breaks off.
    pub async fn whole(self) -> Result<Bytes, hyper::Error> {
        Ok(self.body.collect().await?.to_bytes())
    }

    pub async fn json(self) -> Value {
        serde_json::from_slice(&self.bytes().await).unwrap()
    }

    /// The next event's data; `None` behind the last, and an error when the stream breaks off.
    pub async fn event(&mut self) -> Result<Option<String>, hyper::Error> {
        loop {
            if let Some(end) = self.rest.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = self.rest.drain(..end + 2).collect();
                let text = String::from_utf8(event[..end].to_vec()).unwrap();
                if text.starts_with(':') {
                    self.comments += 1;
                    continue;
                }
                return Ok(Some(
                    text.strip_prefix("data: ").expect("a data line").to_owned(),
                ));
            }
            match self.body.frame().await {
                Some(frame) => self.rest.extend_from_slice(&frame?.into_data().unwrap()),
                None => {
                    assert!(self.rest.is_empty(), "the stream ended within an event");
                    return Ok(None);
                }
            }
        }
    }

    /// The text of the next event.
    pub async fn text(&mut self) -> String {
        let event = self.event().await.unwrap().expect("an event");
        let chunk: Value = serde_json::from_str(&event).unwrap();
        chunk["choices"][0]["text"]
            .as_str()
            .expect("text")
            .to_owned()
    }

    /// All further events.
    pub async fn events(&mut self) -> Vec<String> {
        let mut events = Vec::new();
        while let Some(event) = self.event().await.unwrap() {
            events.push(event);
        }
        events
    }
}
