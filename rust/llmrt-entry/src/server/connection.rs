//! One connection: HTTP/1.1 or HTTP/2 by the first bytes, with every bound that hyper leaves to its user.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::TokioTimer;
use hyper_util::server::conn::auto;
use tokio::sync::watch;
use tokio::task::{AbortHandle, spawn_local};

use super::executor::LocalExecutor;
use super::handshake::Chosen;
use super::hangup::Hangup;
use super::head_timer::HeadTimer;
use super::peer::{Lifespan, Peer};
use super::socket::Socket;
use crate::config::EntryConfig;

/// Streams that a peer may open and reset before they are accepted, and that we may reset for its errors.
const RESETS: usize = 128;
/// What hyper may buffer to send on one HTTP/2 stream, bytes; more waits in the response's own buffer.
const SEND_BUFFER: usize = 64 << 10;

/// Protocol settings shared by all connections of a shard.
pub struct Protocols {
    builder: auto::Builder<LocalExecutor>,
    http2: bool,
    pause: Duration,
    lifespan: Lifespan,
    stall: Duration,
}

impl Protocols {
    /// The settings of field experience (RFC 9113 leaves them open) within the limits of `config`.
    pub fn new(config: &EntryConfig) -> Self {
        let (limits, http2) = (&config.limits, &config.http2);
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
            .initial_stream_window_size(http2.stream_window)
            .initial_connection_window_size(http2.connection_window)
            .max_send_buf_size(SEND_BUFFER)
            .keep_alive_interval(http2.keep_alive_interval())
            .keep_alive_timeout(http2.keep_alive_timeout());
        Self {
            builder,
            http2: http2.enabled,
            pause: limits.keep_alive_timeout(),
            lifespan: Lifespan::new(limits),
            stall: limits.stall_timeout(),
        }
    }

    /// Serves `socket` until its end. When `drain` turns true or `peer` is to go, no further request is taken (GOAWAY
    /// on HTTP/2, `connection: close` on HTTP/1.1) and the connection ends with its last response.
    pub(super) async fn serve<S, B>(
        &self,
        socket: Socket,
        chosen: Chosen,
        peer: Rc<Peer>,
        service: S,
        drain: watch::Receiver<bool>,
    ) where
        S: Service<Request<Incoming>, Response = Response<B>> + 'static,
        S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        B: Body + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut builder = match chosen {
            Chosen::Http2 => self.builder.clone().http2_only(),
            Chosen::Open if self.http2 => self.builder.clone(),
            Chosen::Open | Chosen::Http1 => self.builder.clone().http1_only(),
        };
        // Found by the answers that this task carries, which are those of HTTP/1.1.
        Hangup::current().set_wire(socket.wire());
        let timer = HeadTimer::new(socket.received(), self.pause);
        builder.http1().timer(timer);
        let mut connection = pin!(builder.serve_connection(socket, service));
        let watch = spawn_local(peer.clone().watch(drain, self.lifespan));
        let _watch = AbortOnDrop(watch.abort_handle());
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = peer.retired() => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection => ended,
                    () = peer.abandoned(self.stall) => {
                        return tracing::debug!("connection cut: its client fetches nothing");
                    }
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection ended");
        }
    }
}

/// A task that ends with its owner.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Waits until `drain` turns true.
pub(super) async fn draining(drain: &mut watch::Receiver<bool>) {
    // The value that the wait returns is a lock on the channel: it must not live on. A sender that is gone drains too.
    drop(drain.wait_for(|draining| *draining).await);
}
