//! What an entry worker that takes nothing at the moment is owed.

use std::collections::VecDeque;
use std::time::Duration;

use llmrt_link::Outbox;
use llmrt_wire::{Finished, First, Message, Outcome, PromptLogprobs, TextFrame, TokenIds};
use tokio::time::Instant;

/// Frames that are kept with their text; of older ones only the ends of requests are.
const MAX_FRAMES: usize = 64;
/// How long they are kept: a worker that is gone for longer has told its clients itself.
const KEEP: Duration = Duration::from_secs(60);

/// Frames that wait for one worker, in order.
pub struct Owed {
    since: Instant,
    /// Ends out of frames that were let go, as one frame without text.
    ends: Option<Message>,
    frames: VecDeque<Message>,
}

impl Owed {
    pub fn new() -> Self {
        Self {
            since: Instant::now(),
            ends: None,
            frames: VecDeque::new(),
        }
    }

    /// Whether the worker has been away for so long that nothing is owed any more.
    pub fn is_stale(&self) -> bool {
        self.since.elapsed() >= KEEP
    }

    /// Whether one more frame fits with its text.
    pub fn has_room(&self) -> bool {
        self.frames.len() < MAX_FRAMES
    }

    /// Keeps a frame. Above the bound the oldest gives up its text, but no request's end: a row that ends its request
    /// ends it with `lost` instead if text, token ids or log probabilities go with it.
    pub fn push(&mut self, frame: Message, lost: &Outcome) {
        self.frames.push_back(frame);
        while self.frames.len() > MAX_FRAMES {
            if let Some(Message::TextFrame(frame)) = self.frames.pop_front() {
                let mut ends = match self.ends.take() {
                    Some(Message::TextFrame(ends)) => ends,
                    _ => TextFrame::default(),
                };
                keep_ends(frame, lost, &mut ends);
                self.ends = Some(ends.into());
            }
        }
    }

    /// Sends what the worker takes; true when nothing is left.
    pub fn settle(&mut self, outbox: &dyn Outbox) -> bool {
        if let Some(ends) = &self.ends {
            if outbox.send(ends).is_err() {
                return false;
            }
            self.ends = None;
        }
        while let Some(frame) = self.frames.front() {
            if outbox.send(frame).is_err() {
                return false;
            }
            self.frames.pop_front();
        }
        true
    }
}

/// Whether a row has more than its text: token ids, with or without log probabilities, or those of its prompt.
fn tells(tokens: &Option<TokenIds>, prompts: &[PromptLogprobs], row: u32) -> bool {
    let with_ids = tokens
        .as_ref()
        .is_some_and(|tokens| tokens.rows.contains(&row));
    with_ids || prompts.iter().any(|prompt| prompt.row == row)
}

/// Appends the rows of `frame` that end a request to `ends`, without their text and whatever else they tell.
fn keep_ends(frame: TextFrame, lost: &Outcome, ends: &mut TextFrame) {
    ends.step = frame.step;
    for finished in frame.finished {
        let row = finished.row as usize;
        let (Some(&id), Some(&count), Some(&end)) = (
            frame.ids.get(row),
            frame.counts.get(row),
            frame.ends.get(row),
        ) else {
            continue;
        };
        let start = row.checked_sub(1).map_or(0, |before| frame.ends[before]);
        let outcome = if end > start || tells(&frame.tokens, &frame.prompt_logprobs, finished.row) {
            lost.clone()
        } else {
            finished.outcome
        };
        let row = ends.ids.len() as u32;
        let first = frame.first.iter().find(|first| first.row == finished.row);
        ends.first.extend(first.map(|first| First {
            row,
            ..first.clone()
        }));
        ends.ids.push(id);
        ends.counts.push(count);
        ends.ends.push(0);
        ends.finished.push(Finished { row, outcome });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use llmrt_link::{PeerState, SendError};
    use llmrt_wire::FinishReason;
    use tokio::sync::{mpsc, watch};

    use super::*;
    use crate::cut::{Cut, Row};
    use crate::state::failure;
    use crate::stream::Report;
    use crate::told::Told;

    /// Takes so many messages, then none.
    struct Narrow(usize, Mutex<Vec<Message>>);

    impl Outbox for Narrow {
        fn send(&self, message: &Message) -> Result<(), SendError> {
            let mut taken = self.1.lock().unwrap();
            if taken.len() == self.0 {
                return Err(SendError::Full);
            }
            taken.push(message.clone());
            Ok(())
        }

        fn state(&self) -> watch::Receiver<PeerState> {
            watch::channel(PeerState::Connecting).1
        }

        fn is_greeting(&self) -> bool {
            false
        }

        fn incoming(&self) -> Option<mpsc::Receiver<Message>> {
            None
        }

        fn close(&self, _: &str) {}
    }

    fn stop() -> Outcome {
        Outcome {
            reason: FinishReason::Stop,
            ..failure(0, "")
        }
    }

    /// One row that ends, one that ends with text, one with text only, one that ends with a token id.
    fn frame(step: u64) -> Message {
        let mut cut = Cut::new(step, 4);
        for (row, text, outcome, ids) in [
            (0, "", Some(stop()), None),
            (1, "last", Some(stop()), None),
            (2, "text", None, None),
            (3, "", Some(stop()), Some([5])),
        ] {
            let told = ids.map(|ids| {
                let mut told = Told::default();
                told.push(&ids, None);
                Box::new(told)
            });
            cut.add(Row {
                id: llmrt_wire::RequestId::new(0, 0, 4 * step + row),
                text,
                report: Report {
                    tokens: 1,
                    first: None,
                    told,
                },
                outcome,
            });
        }
        cut.into_frames().remove(0).1.into()
    }

    #[test]
    fn every_end_outlives_the_bound() {
        let steps = 3 * MAX_FRAMES as u64;
        let mut owed = Owed::new();
        for step in 0..steps {
            owed.push(frame(step), &failure(503, "lost"));
        }
        assert_eq!(owed.frames.len(), MAX_FRAMES);
        // Half is taken now, the rest later: nothing comes twice.
        let first = Narrow(MAX_FRAMES / 2, Mutex::default());
        assert!(!owed.settle(&first));
        let second = Narrow(usize::MAX, Mutex::default());
        assert!(owed.settle(&second));
        let mut seen = Vec::new();
        let taken = [
            first.1.into_inner().unwrap(),
            second.1.into_inner().unwrap(),
        ];
        for message in taken.concat() {
            let Message::TextFrame(frame) = Message::decode(&message.encode()).unwrap() else {
                panic!("{message:?}");
            };
            for finished in frame.finished {
                seen.push((frame.ids[finished.row as usize], finished.outcome));
            }
        }
        let let_go = steps - MAX_FRAMES as u64;
        let expected: Vec<_> = (0..steps)
            .flat_map(|step| {
                let cut_off = if step < let_go {
                    failure(503, "lost")
                } else {
                    stop()
                };
                [
                    (4 * step, stop()),
                    (4 * step + 1, cut_off.clone()),
                    (4 * step + 3, cut_off),
                ]
            })
            .collect();
        assert_eq!(seen, expected);
    }
}
