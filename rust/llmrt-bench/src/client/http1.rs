//! HTTP/1.1: one request at a time on a connection, which is kept for the next.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;

use super::dial::Dialer;
use super::{Fault, Reply};

type Sender = SendRequest<Full<Bytes>>;

/// Connections without a request, the latest last: it is the warmest.
pub struct Pool {
    dialer: Rc<Dialer>,
    idle: RefCell<Vec<Sender>>,
}

/// A body; its connection returns to the pool when it was read to the end.
pub struct Body {
    incoming: Incoming,
    sender: Option<Sender>,
    pool: Rc<Pool>,
}

impl Pool {
    pub fn new(dialer: Rc<Dialer>) -> Self {
        Self {
            dialer,
            idle: RefCell::default(),
        }
    }

    pub async fn send(self: &Rc<Self>, request: Request<Bytes>) -> Result<Reply, Fault> {
        let mut request = request.map(Full::new);
        loop {
            let kept = self.idle.borrow_mut().pop();
            let is_kept = kept.is_some();
            let mut sender = match kept {
                Some(sender) => sender,
                None => self.connect().await?,
            };
            match sender.ready().await {
                Ok(()) => {}
                // The server closed it while it was idle.
                Err(_) if is_kept => continue,
                Err(error) => return Err(Fault::lost(&error)),
            }
            match sender.try_send_request(request).await {
                Ok(response) => {
                    let (head, incoming) = response.into_parts();
                    let body = Body {
                        incoming,
                        sender: Some(sender),
                        pool: self.clone(),
                    };
                    return Ok(Reply {
                        status: head.status,
                        headers: head.headers,
                        body: super::Body::Http1(body),
                    });
                }
                Err(mut failure) => match failure.take_message() {
                    // Nothing of it was written.
                    Some(unsent) if is_kept => request = unsent,
                    _ => return Err(Fault::lost(&failure.into_error())),
                },
            }
        }
    }

    async fn connect(&self) -> Result<Sender, Fault> {
        let stream = TokioIo::new(self.dialer.dial().await?);
        let (sender, connection) = handshake(stream)
            .await
            .map_err(|e| Fault::new("connect", e))?;
        // Its failure reaches the request that uses it.
        tokio::task::spawn_local(async move { drop(connection.await) });
        Ok(sender)
    }
}

impl Body {
    pub async fn data(&mut self) -> Option<Result<Bytes, Fault>> {
        loop {
            let frame = match self.incoming.frame().await {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Some(Err(Fault::lost(&error))),
                None => {
                    if let Some(sender) = self.sender.take().filter(|sender| !sender.is_closed()) {
                        self.pool.idle.borrow_mut().push(sender);
                    }
                    return None;
                }
            };
            if let Ok(bytes) = frame.into_data() {
                return Some(Ok(bytes));
            }
        }
    }
}
