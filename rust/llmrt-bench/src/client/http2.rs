//! HTTP/2, in clear text with prior knowledge: many requests at once on a connection.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use h2::{Ping, RecvStream};
use http::Request;
use tokio::sync::OnceCell;

use super::dial::Dialer;
use super::{Fault, Reply};

/// Windows so large that a stream of text never waits for an update.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 1 << 26;

pub struct Pool {
    dialer: Rc<Dialer>,
    streams: usize,
    connections: RefCell<Vec<Rc<Connection>>>,
}

struct Connection {
    /// Set when the handshake is done; who comes first makes it, the others wait.
    sender: OnceCell<SendRequest<Bytes>>,
    active: Cell<usize>,
}

/// A place on a connection.
struct Place(Rc<Connection>);

pub struct Body {
    stream: RecvStream,
    _place: Place,
}

impl Pool {
    pub fn new(dialer: Rc<Dialer>, streams: usize) -> Self {
        Self {
            dialer,
            streams,
            connections: RefCell::default(),
        }
    }

    pub async fn send(&self, request: Request<Bytes>) -> Result<Reply, Fault> {
        let (head, body) = request.into_parts();
        let (place, mut sender) = self.ready().await?;
        let lost = |error: h2::Error| Fault::lost(&error);
        let (response, mut upload) = sender
            .send_request(Request::from_parts(head, ()), body.is_empty())
            .map_err(lost)?;
        if !body.is_empty() {
            upload.send_data(body, true).map_err(lost)?;
        }
        let (head, stream) = response.await.map_err(lost)?.into_parts();
        Ok(Reply {
            status: head.status,
            headers: head.headers,
            body: super::Body::Http2(Body {
                stream,
                _place: place,
            }),
        })
    }

    /// A place on a connection that works.
    async fn ready(&self) -> Result<(Place, SendRequest<Bytes>), Fault> {
        loop {
            let place = self.place();
            let is_kept = place.0.sender.initialized();
            let opened = place.0.sender.get_or_try_init(|| self.connect()).await;
            let error = match opened {
                // It turned out that the server allows fewer: another connection has to do.
                Ok(sender) if place.0.active.get() > self.room(sender) => continue,
                Ok(sender) => match sender.clone().ready().await {
                    Ok(sender) => return Ok((place, sender)),
                    Err(error) => Fault::lost(&error),
                },
                Err(fault) => fault,
            };
            self.connections
                .borrow_mut()
                .retain(|connection| !Rc::ptr_eq(connection, &place.0));
            // A kept connection may have been closed while it was idle; a new one that fails is news.
            if !is_kept {
                return Err(error);
            }
        }
    }

    /// The first connection with room; a new one if there is none.
    fn place(&self) -> Place {
        let mut connections = self.connections.borrow_mut();
        let roomy = connections.iter().find(|connection| {
            let room = connection
                .sender
                .get()
                .map_or(self.streams, |sender| self.room(sender));
            connection.active.get() < room
        });
        let connection = roomy.cloned().unwrap_or_else(|| {
            let new = Rc::new(Connection {
                sender: OnceCell::new(),
                active: Cell::new(0),
            });
            connections.push(new.clone());
            new
        });
        connection.active.set(connection.active.get() + 1);
        Place(connection)
    }

    /// Requests that a connection takes: beyond the server's own limit they would wait in it unseen.
    fn room(&self, sender: &SendRequest<Bytes>) -> usize {
        self.streams.min(sender.current_max_send_streams()).max(1)
    }

    async fn connect(&self) -> Result<SendRequest<Bytes>, Fault> {
        let stream = self.dialer.dial().await?;
        let (sender, mut connection) = Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .initial_max_send_streams(self.streams)
            .enable_push(false)
            .handshake(stream)
            .await
            .map_err(|e| Fault::new("connect", e))?;
        let ping = connection.ping_pong();
        // Its failure reaches the requests that use it.
        tokio::task::spawn_local(async move { drop(connection.await) });
        // The answer comes behind the server's settings: from then on its limit is known.
        if let Some(mut ping) = ping {
            ping.ping(Ping::opaque())
                .await
                .map_err(|e| Fault::new("connect", e))?;
        }
        Ok(sender)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.active.set(self.0.active.get() - 1);
    }
}

impl Body {
    pub async fn data(&mut self) -> Option<Result<Bytes, Fault>> {
        let bytes = match self.stream.data().await? {
            Ok(bytes) => bytes,
            Err(error) => return Some(Err(Fault::lost(&error))),
        };
        let released = self.stream.flow_control().release_capacity(bytes.len());
        Some(released.map(|()| bytes).map_err(|e| Fault::lost(&e)))
    }
}
