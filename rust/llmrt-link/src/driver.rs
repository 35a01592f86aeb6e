//! The one task of an outbox: connects, listens, keeps the peer alive, reconnects.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

use crate::outbox::{End, Pipe, Sender};

const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// Incoming half of one connection.
pub trait Source: Send {
    /// The next frame, or why the connection ended. Cancel-safe.
    fn next(&mut self) -> impl Future<Output = Result<Bytes, String>> + Send;
}

/// Makes connections to one endpoint.
pub trait Connector: Send + 'static {
    type Source: Source;

    /// One attempt, bounded in time.
    fn connect(
        &mut self,
    ) -> impl Future<Output = Result<(Box<dyn Pipe>, Self::Source), String>> + Send;

    /// Number that the other end has given us with the last connection, where it gives any.
    fn place(&self) -> Option<u32> {
        None
    }
}

/// Keeps `sender` connected until its outbox is gone.
pub(crate) async fn drive<C: Connector>(sender: Arc<Sender>, mut connector: C) {
    let mut pause = FIRST_PAUSE;
    loop {
        match connector.connect().await {
            Ok((pipe, mut source)) => {
                sender.attach(pipe, connector.place());
                let end = serve(&sender, &mut source).await;
                if sender.state().borrow().is_ready() {
                    pause = FIRST_PAUSE;
                }
                sender.detach(&end);
            }
            Err(reason) => tracing::debug!(reason, "not connected yet"),
        }
        sleep(pause).await;
        pause = (pause * 2).min(sender.options().backoff);
    }
}

/// Runs one connection; returns how it ended.
async fn serve(sender: &Sender, source: &mut impl Source) -> End {
    let options = sender.options();
    let mut beat = interval_at(Instant::now() + options.heartbeat, options.heartbeat);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Silence is counted in beats, not read off a clock: whoever was stopped himself must not blame the peer.
    let patience = beats(options.silence, options.heartbeat);
    let mut silent = 0;
    loop {
        tokio::select! {
            biased;
            () = sender.broken() => return End::Lost("the connection is lost".to_owned()),
            frame = source.next() => {
                silent = 0;
                match frame {
                    Ok(raw) => if let Err(reason) = sender.handle(&raw) {
                        return End::Refused(reason);
                    },
                    Err(reason) => return End::Lost(reason),
                }
            }
            // Who has not answered the greeting is asked nothing: a receiver may be bound long before it receives.
            _ = beat.tick(), if sender.is_ready() => {
                silent += 1;
                if silent > patience {
                    return End::Lost(format!("the peer was silent for {:?}", options.silence));
                }
                if !sender.beat() {
                    return End::Lost("the connection is lost".to_owned());
                }
            }
        }
    }
}

/// Beats that fit into a silence, at least one.
pub(crate) fn beats(silence: Duration, heartbeat: Duration) -> u32 {
    let ratio = silence.as_secs_f64() / heartbeat.as_secs_f64().max(1e-3);
    (ratio.ceil() as u32).max(1)
}
