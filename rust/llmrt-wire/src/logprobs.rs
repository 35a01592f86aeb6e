//! Optional columns of a frame: token ids and log probabilities of the rows whose requests asked for them.
//!
//! Log probabilities are natural logarithms of the softmax of the model's own logits, before anything that
//! [`crate::Sampling`] does to them. The likeliest tokens stand best first; of equal ones the lowest id is first.

use serde::{Deserialize, Serialize};

use crate::check::{FrameError, check_length, check_rows, check_values};
use crate::column::Column;

/// Log probabilities of the tokens of some rows, end to end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Logprobs {
    /// Rows of the frame, ascending. Each has values for every one of its tokens, as the frame's `counts` has it.
    pub rows: Column<u32>,
    /// For each of these rows: how many of the likeliest tokens are given at the place of each of its tokens.
    pub top: Column<u32>,
    /// The log probability of each token.
    pub chosen: Column<f32>,
    /// For each token: the likeliest at its place.
    pub top_ids: Column<u32>,
    /// Their log probabilities.
    pub top_logprobs: Column<f32>,
}

/// Log probabilities of consecutive tokens; `top_ids` and `top_logprobs` hold `top` values for each of `chosen`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LogprobRow<'f> {
    pub top: u32,
    pub chosen: &'f [f32],
    pub top_ids: &'f [u32],
    pub top_logprobs: &'f [f32],
}

impl LogprobRow<'_> {
    /// The values of the first `tokens` tokens.
    pub fn first(self, tokens: usize) -> Self {
        let tops = tokens.saturating_mul(self.top as usize);
        Self {
            top: self.top,
            chosen: &self.chosen[..tokens.min(self.chosen.len())],
            top_ids: &self.top_ids[..tops.min(self.top_ids.len())],
            top_logprobs: &self.top_logprobs[..tops.min(self.top_logprobs.len())],
        }
    }
}

impl Logprobs {
    /// Adds a row of the frame; rows are added in order.
    pub fn push(&mut self, row: u32, values: LogprobRow) {
        self.rows.push(row);
        self.top.push(values.top);
        self.chosen.extend_from_slice(values.chosen);
        self.top_ids.extend_from_slice(values.top_ids);
        self.top_logprobs.extend_from_slice(values.top_logprobs);
    }

    /// The rows with their values; `counts` is the frame's. Complete for a frame whose columns fit together.
    pub fn iter<'f>(
        &'f self,
        counts: &'f [u32],
    ) -> impl Iterator<Item = (u32, LogprobRow<'f>)> + 'f {
        let mut chosen = self.chosen.as_slice();
        let mut top_ids = self.top_ids.as_slice();
        let mut top_logprobs = self.top_logprobs.as_slice();
        self.rows
            .iter()
            .zip(self.top.iter())
            .map(move |(&row, &top)| {
                let count = counts.get(row as usize).map_or(0, |&count| count as usize);
                let tops = count.saturating_mul(top as usize);
                let values = LogprobRow {
                    top,
                    chosen: take(&mut chosen, count),
                    top_ids: take(&mut top_ids, tops),
                    top_logprobs: take(&mut top_logprobs, tops),
                };
                (row, values)
            })
    }

    pub(crate) fn check(&self, counts: &[u32]) -> Result<(), FrameError> {
        check_length(self.top.len(), self.rows.len())?;
        check_rows(&self.rows, counts.len())?;
        let (mut tokens, mut tops) = (0_u64, 0_u64);
        for (&row, &top) in self.rows.iter().zip(self.top.iter()) {
            let count = u64::from(counts[row as usize]);
            tokens = tokens.saturating_add(count);
            tops = tops.saturating_add(count * u64::from(top));
        }
        check_values(self.chosen.len(), tokens)?;
        check_values(self.top_ids.len(), tops)?;
        check_values(self.top_logprobs.len(), tops)
    }
}

/// Log probabilities of a prompt, once for each request that asked: in its first row, the one that has its first token
/// or its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PromptLogprobs {
    /// Row of the frame.
    pub row: u32,
    /// How many of the likeliest tokens are given at the place of each token.
    pub top: u32,
    /// The log probability of each prompt token but the first, which has none.
    pub chosen: Column<f32>,
    /// For each of these tokens: the likeliest at its place.
    pub top_ids: Column<u32>,
    /// Their log probabilities.
    pub top_logprobs: Column<f32>,
}

impl PromptLogprobs {
    /// All values.
    pub fn values(&self) -> LogprobRow<'_> {
        LogprobRow {
            top: self.top,
            chosen: &self.chosen,
            top_ids: &self.top_ids,
            top_logprobs: &self.top_logprobs,
        }
    }

    pub(crate) fn check(&self, rows: usize) -> Result<(), FrameError> {
        check_rows(&[self.row], rows)?;
        let tops = (self.chosen.len() as u64).saturating_mul(u64::from(self.top));
        check_values(self.top_ids.len(), tops)?;
        check_values(self.top_logprobs.len(), tops)
    }
}

/// Token ids of some rows of a [`crate::TextFrame`], end to end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenIds {
    /// Rows of the frame, ascending. Each has as many ids as the frame's `counts` has it.
    pub rows: Column<u32>,
    pub ids: Column<u32>,
}

impl TokenIds {
    /// Adds a row of the frame; rows are added in order.
    pub fn push(&mut self, row: u32, ids: &[u32]) {
        self.rows.push(row);
        self.ids.extend_from_slice(ids);
    }

    /// The rows with their ids; `counts` is the frame's. Complete for a frame whose columns fit together.
    pub fn iter<'f>(&'f self, counts: &'f [u32]) -> impl Iterator<Item = (u32, &'f [u32])> + 'f {
        let mut ids = self.ids.as_slice();
        self.rows.iter().map(move |&row| {
            let count = counts.get(row as usize).map_or(0, |&count| count as usize);
            (row, take(&mut ids, count))
        })
    }

    pub(crate) fn check(&self, counts: &[u32]) -> Result<(), FrameError> {
        check_rows(&self.rows, counts.len())?;
        let of = |&row: &u32| u64::from(counts[row as usize]);
        check_values(self.ids.len(), self.rows.iter().map(of).sum())
    }
}

/// Cuts the first `count` values off.
fn take<'f, T>(values: &mut &'f [T], count: usize) -> &'f [T] {
    let (own, rest) = values.split_at(values.len().min(count));
    *values = rest;
    own
}
