//! The optional columns of a text frame, row by row.

use std::iter::Peekable;

use llmrt_wire::{LogprobRow, PromptLogprobs, TextFrame};

use crate::api::Row;

type Rows<'f, T> = Peekable<Box<dyn Iterator<Item = (u32, T)> + 'f>>;

/// What is left of the columns. Rows are taken in order.
pub(super) struct Extras<'f> {
    ids: Rows<'f, &'f [u32]>,
    logprobs: Rows<'f, LogprobRow<'f>>,
    prompts: Rows<'f, &'f PromptLogprobs>,
}

impl<'f> Extras<'f> {
    /// Those of `frame`; `None` for most frames, which have none.
    pub(super) fn of(frame: &'f TextFrame) -> Option<Self> {
        if frame.tokens.is_none() && frame.prompt_logprobs.is_empty() {
            return None;
        }
        let counts = &frame.counts;
        let ids = frame.tokens.iter().flat_map(move |ids| ids.iter(counts));
        let logprobs = frame
            .logprobs
            .iter()
            .flat_map(move |rows| rows.iter(counts));
        let prompts = frame.prompt_logprobs.iter().map(|one| (one.row, one));
        Some(Self {
            ids: boxed(ids),
            logprobs: boxed(logprobs),
            prompts: boxed(prompts),
        })
    }

    /// What there is for the row with this number.
    pub(super) fn take(&mut self, row: u32) -> Row<'f> {
        Row {
            ids: own(&mut self.ids, row).unwrap_or_default(),
            logprobs: own(&mut self.logprobs, row).unwrap_or_default(),
            prompt: own(&mut self.prompts, row),
            ..Row::default()
        }
    }
}

fn boxed<'f, T>(rows: impl Iterator<Item = (u32, T)> + 'f) -> Rows<'f, T> {
    (Box::new(rows) as Box<dyn Iterator<Item = (u32, T)> + 'f>).peekable()
}

fn own<T>(rows: &mut Rows<T>, row: u32) -> Option<T> {
    rows.next_if(|(at, _)| *at == row).map(|(_, value)| value)
}
