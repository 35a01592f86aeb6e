//! One end of a tunnel whose nodes and gateway know each other: records in both directions, and signs of life.

use std::time::Duration;

use bytes::BytesMut;
use futures_util::StreamExt;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::AbortHandle;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tokio_util::codec::{FramedRead, LengthDelimitedCodec};

use crate::noise::{LENGTH, MAX_PLAIN, Opener, Sealer};
use crate::outgoing::Outgoing;
use crate::record::Record;
use crate::session::Session;

/// Signs of life that fit into a silence.
const BEATS: u32 = 8;

/// A tunnel as its reader has it. Dropping it ends the tunnel.
pub struct Line {
    outgoing: Outgoing,
    pieces: FramedRead<OwnedReadHalf, LengthDelimitedCodec>,
    opener: Opener,
    plain: BytesMut,
    writer: AbortHandle,
    beat: Interval,
    /// Beats since the other end was last heard.
    silent: u32,
}

impl Line {
    /// Must be called within a runtime, which then carries the tunnel. A peer that says nothing for `silence` is gone.
    pub fn open(session: Session, silence: Duration) -> Self {
        let (read, write) = session.stream.into_split();
        let outgoing = Outgoing::default();
        let writer = tokio::spawn(send(outgoing.clone(), write, session.sealer));
        let pieces = LengthDelimitedCodec::builder()
            .length_field_length(LENGTH)
            .max_frame_length(usize::from(u16::MAX))
            .new_read(read);
        let period = (silence / BEATS).max(Duration::from_millis(1));
        let mut beat = interval_at(Instant::now() + period, period);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            outgoing,
            pieces,
            opener: session.opener,
            plain: BytesMut::new(),
            writer: writer.abort_handle(),
            beat,
            silent: 0,
        }
    }

    /// Where to put what is to be sent.
    pub fn outgoing(&self) -> &Outgoing {
        &self.outgoing
    }

    /// The next record, or why there will be none any more. Cancel-safe.
    pub async fn next(&mut self) -> Result<Record, String> {
        loop {
            match Record::take(&mut self.plain).map_err(|error| error.to_string())? {
                Some(Record::Ping) => continue,
                Some(record) => return Ok(record),
                None => {}
            }
            tokio::select! {
                biased;
                reason = self.outgoing.ended() => return Err(reason),
                piece = self.pieces.next() => match piece {
                    Some(Ok(piece)) => {
                        self.silent = 0;
                        self.opener
                            .open(&piece, &mut self.plain)
                            .map_err(|error| error.to_string())?;
                    }
                    Some(Err(error)) => return Err(format!("the connection broke: {error}")),
                    None => return Err("the connection is closed".to_owned()),
                },
                _ = self.beat.tick() => self.look()?,
            }
        }
    }

    /// Gives a sign of life, and misses the other end's. Silence is counted in beats, not read off a clock: whoever was
    /// stopped himself must not blame the peer.
    fn look(&mut self) -> Result<(), String> {
        self.silent += 1;
        // One less than fits, so that the silence has not passed before it shows.
        if self.silent >= BEATS {
            return Err("no sign of life".to_owned());
        }
        // What waits is one as well.
        if self.outgoing.bytes() == 0 {
            self.outgoing.push(Record::Ping);
        }
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.outgoing.end("the tunnel has ended");
        self.writer.abort();
    }
}

/// Seals and writes what is queued, several records in one piece where they fit.
async fn send(outgoing: Outgoing, mut half: OwnedWriteHalf, mut sealer: Sealer) {
    let (mut plain, mut sealed) = (Vec::new(), Vec::new());
    while let Some(share) = outgoing.next(&mut plain).await {
        for piece in plain.chunks(MAX_PLAIN) {
            sealer.seal(piece, &mut sealed);
        }
        if let Err(error) = half.write_all(&sealed).await {
            return outgoing.end(&format!("the connection broke: {error}"));
        }
        outgoing.sent(share);
        plain.clear();
        sealed.clear();
        // A large frame's room is not kept for small ones.
        plain.shrink_to(1 << 20);
        sealed.shrink_to(1 << 20);
    }
}
