//! What waits to be sent to the other end of a tunnel.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::record::{HEAD, MAX_FRAME, Record};

/// Bytes that may wait; as much as the window of a link.
const LIMIT: usize = 64 << 20;
/// What a record takes beside its bytes.
const OVERHEAD: usize = 128;
/// Bytes that are taken at once.
const BATCH: usize = 256 << 10;

/// A bounded queue of records. Clones share it; [`Self::push`] never waits.
#[derive(Clone, Default)]
pub struct Outgoing(Arc<Shared>);

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Wakes whoever writes.
    filled: Notify,
    /// Wakes whoever reads: the queue has ended.
    ended: Notify,
}

#[derive(Default)]
struct Queue {
    records: VecDeque<([u8; HEAD], Bytes)>,
    /// Of the records, and of those that are being written.
    bytes: usize,
    ended: Option<String>,
}

impl Outgoing {
    /// Queues a record; false when the tunnel has ended. A queue that would grow beyond its bound ends the tunnel, but a
    /// record larger than the bound passes alone.
    pub fn push(&self, record: Record) -> bool {
        let (head, payload) = record.into_parts();
        let mut queue = self.lock();
        if queue.ended.is_some() {
            return false;
        }
        let bytes = payload.len() + OVERHEAD;
        if payload.len() > MAX_FRAME || queue.bytes > 0 && queue.bytes + bytes > LIMIT {
            let reason = format!(
                "more than {} MiB wait for a peer that does not read",
                LIMIT >> 20
            );
            drop(queue);
            self.end(&reason);
            return false;
        }
        queue.bytes += bytes;
        queue.records.push_back((head, payload));
        drop(queue);
        self.0.filled.notify_one();
        true
    }

    /// Bytes that wait.
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Ends the queue; what waits is dropped. The first reason stays.
    pub fn end(&self, reason: &str) {
        let mut queue = self.lock();
        queue.ended.get_or_insert_with(|| reason.to_owned());
        queue.records.clear();
        drop(queue);
        self.0.filled.notify_one();
        self.0.ended.notify_one();
    }

    /// Resolves with the reason when the queue has ended.
    pub async fn ended(&self) -> String {
        loop {
            if let Some(reason) = &self.lock().ended {
                return reason.clone();
            }
            self.0.ended.notified().await;
        }
    }

    /// Moves what waits, some records at once, to `plain`; returns their share of the bound, which [`Self::sent`] gives
    /// back. None when the queue has ended.
    pub async fn next(&self, plain: &mut Vec<u8>) -> Option<usize> {
        loop {
            {
                let mut queue = self.lock();
                if queue.ended.is_some() {
                    return None;
                }
                let mut share = 0;
                while plain.len() < BATCH
                    && let Some((head, payload)) = queue.records.pop_front()
                {
                    share += payload.len() + OVERHEAD;
                    plain.extend_from_slice(&head);
                    plain.extend_from_slice(&payload);
                }
                if share > 0 {
                    return Some(share);
                }
            }
            self.0.filled.notified().await;
        }
    }

    /// So much of the bound is free again.
    pub fn sent(&self, share: usize) {
        self.lock().bytes -= share;
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(length: usize) -> Record {
        Record::Data {
            channel: 1,
            frame: vec![0; length].into(),
        }
    }

    #[tokio::test]
    async fn what_waits_is_bounded_and_a_large_frame_passes_alone() {
        let queue = Outgoing::default();
        assert!(queue.push(frame(LIMIT + 1)), "nothing else waits");
        assert!(!queue.push(frame(1)));
        assert!(queue.ended().await.contains("64 MiB"));
        assert!(!queue.push(Record::Ping), "it has ended");
        assert_eq!(queue.next(&mut Vec::new()).await, None);
    }

    #[tokio::test]
    async fn room_is_given_back_when_it_was_sent() {
        let queue = Outgoing::default();
        let mut plain = Vec::new();
        for _ in 0..4 {
            assert!(queue.push(frame(LIMIT / 2)));
            let share = queue.next(&mut plain).await.unwrap();
            assert!(queue.bytes() >= LIMIT / 2, "it is not sent yet");
            queue.sent(share);
            plain.clear();
        }
        assert_eq!(queue.bytes(), 0);
    }
}
