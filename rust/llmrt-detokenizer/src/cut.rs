//! Cuts a step by entry worker.

use llmrt_wire::{Finished, First, Outcome, RequestId, TextFrame};

use crate::stream::Report;

/// Bytes of text that a token usually stands for.
const TOKEN_BYTES: usize = 5;

/// The text frames of one step, built row by row.
pub struct Cut {
    step: u64,
    rows: usize,
    frames: Vec<(u16, TextFrame)>,
}

/// What one request shows in a step.
pub struct Row<'t> {
    pub id: RequestId,
    pub text: &'t str,
    pub report: Report,
    pub outcome: Option<Outcome>,
}

impl Cut {
    /// For a step of at most `rows` rows.
    pub fn new(step: u64, rows: usize) -> Self {
        Self {
            step,
            rows,
            frames: Vec::new(),
        }
    }

    /// Adds a row to the frame of the worker that made its id.
    pub fn add(&mut self, row: Row) {
        let frame = self.frame(row.id.worker());
        let index = frame.ids.len() as u32;
        frame.ids.push(row.id.0);
        frame.counts.push(row.report.tokens);
        frame.text.push_str(row.text);
        frame.ends.push(frame.text.len() as u32);
        frame.first.extend(row.report.first.map(|first| First {
            row: index,
            ..first
        }));
        frame.finished.extend(row.outcome.map(|outcome| Finished {
            row: index,
            outcome,
        }));
        if let Some(told) = row.report.told {
            told.add_to(frame, index, row.report.tokens);
        }
    }

    /// One frame for each worker with something to show.
    pub fn into_frames(self) -> Vec<(u16, TextFrame)> {
        self.frames
    }

    fn frame(&mut self, worker: u16) -> &mut TextFrame {
        let known = self.frames.iter().position(|(other, _)| *other == worker);
        let index = known.unwrap_or_else(|| {
            self.frames.push((worker, room(self.step, self.rows)));
            self.frames.len() - 1
        });
        &mut self.frames[index].1
    }
}

/// An empty frame with room for `rows` rows of one token each.
fn room(step: u64, rows: usize) -> TextFrame {
    TextFrame {
        step,
        ids: Vec::with_capacity(rows).into(),
        counts: Vec::with_capacity(rows).into(),
        ends: Vec::with_capacity(rows).into(),
        text: String::with_capacity(rows * TOKEN_BYTES),
        ..TextFrame::default()
    }
}
