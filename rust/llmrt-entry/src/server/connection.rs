//! One connection: HTTP/1.1 or HTTP/2 by the first bytes, with every bound that hyper leaves to its user.

use std::pin::pin;
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::TokioTimer;
use hyper_util::server::conn::auto;
use tokio::sync::watch;

use super::executor::LocalExecutor;
use super::head_timer::HeadTimer;
use super::socket::Socket;
use crate::config::Limits;

const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// Streams that a peer may open and reset before they are accepted, and that we may reset for its errors.
const RESETS: usize = 128;
/// What hyper may buffer to send on one HTTP/2 stream, bytes; more waits in the response's own buffer.
const SEND_BUFFER: usize = 64 << 10;

/// Protocol settings shared by all connections of a shard.
pub struct Protocols {
    builder: auto::Builder<LocalExecutor>,
    pause: Duration,
}

impl Protocols {
    /// The settings of field experience (RFC 9113 leaves them open) within `limits`.
    pub fn new(limits: &Limits) -> Self {
        let mut builder = auto::Builder::new(LocalExecutor);
        builder
            .http1()
            .header_read_timeout(limits.header_timeout())
            .max_headers(limits.max_headers)
            .max_buf_size((limits.max_header_bytes as usize).max(8 << 10));
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_header_list_size(limits.max_header_bytes)
            .max_concurrent_streams(limits.max_concurrent_streams)
            .max_pending_accept_reset_streams(RESETS)
            .max_local_error_reset_streams(RESETS)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE);
        Self {
            builder,
            pause: limits.keep_alive_timeout(),
        }
    }

    /// Serves `socket` until its end. When `drain` turns true, no further request is taken (GOAWAY on HTTP/2,
    /// `connection: close` on HTTP/1.1) and the connection ends with its last response.
    pub(super) async fn serve<S, B>(
        &self,
        socket: Socket,
        service: S,
        mut drain: watch::Receiver<bool>,
    ) where
        S: Service<Request<Incoming>, Response = Response<B>> + 'static,
        S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        B: Body + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut builder = self.builder.clone();
        let timer = HeadTimer::new(socket.received(), self.pause);
        builder.http1().timer(timer);
        let mut connection = pin!(builder.serve_connection(socket, service));
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = draining(&mut drain) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection ended");
        }
    }
}

/// Waits until `drain` turns true.
pub(super) async fn draining(drain: &mut watch::Receiver<bool>) {
    // The value that the wait returns is a lock on the channel: it must not live on. A sender that is gone drains too.
    drop(drain.wait_for(|draining| *draining).await);
}
