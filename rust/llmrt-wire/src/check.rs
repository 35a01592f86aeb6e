//! Whether the columns of a frame fit together.

use crate::frame::{Finished, First, TextFrame, TokenFrame};
use crate::logprobs::{Logprobs, PromptLogprobs};

/// How the columns of a frame contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a column of {len} values for {rows} rows")]
    Length { len: usize, rows: usize },
    #[error("{tokens} tokens where the counts add up to {counted}")]
    Tokens { tokens: u64, counted: u64 },
    #[error("row {row} of {rows}")]
    Row { row: u32, rows: usize },
    #[error("end {end} is behind {start}, outside the text or inside a character")]
    End { start: usize, end: usize },
    #[error("{bytes} bytes of text belong to no row")]
    Rest { bytes: usize },
    #[error("row {row} does not stand behind row {before}")]
    Order { row: u32, before: u32 },
    #[error("{values} values where {wanted} belong")]
    Values { values: usize, wanted: u64 },
    #[error("row {row} has log probabilities, but no token ids")]
    NoIds { row: u32 },
}

impl TokenFrame {
    /// Whether the columns fit together; [`crate::Message::decode`] has checked already.
    pub fn check(&self) -> Result<(), FrameError> {
        let rows = self.ids.len();
        check_length(self.counts.len(), rows)?;
        let counted = self.counts.iter().map(|&count| u64::from(count)).sum();
        let tokens = self.tokens.len() as u64;
        if tokens != counted {
            return Err(FrameError::Tokens { tokens, counted });
        }
        check_marks(rows, &self.first, &self.finished)?;
        check_logprobs(&self.counts, self.logprobs.as_ref(), &self.prompt_logprobs)
    }
}

impl TextFrame {
    /// Whether the columns fit together; [`crate::Message::decode`] has checked already.
    pub fn check(&self) -> Result<(), FrameError> {
        let rows = self.ids.len();
        check_length(self.counts.len(), rows)?;
        check_length(self.ends.len(), rows)?;
        let mut start = 0;
        for &end in self.ends.iter() {
            let end = end as usize;
            // `is_char_boundary` is false behind the end of the text.
            if end < start || !self.text.is_char_boundary(end) {
                return Err(FrameError::End { start, end });
            }
            start = end;
        }
        let bytes = self.text.len() - start;
        if bytes != 0 {
            return Err(FrameError::Rest { bytes });
        }
        check_marks(rows, &self.first, &self.finished)?;
        check_logprobs(&self.counts, self.logprobs.as_ref(), &self.prompt_logprobs)?;
        self.check_tokens()
    }

    /// Rows with log probabilities have token ids too.
    fn check_tokens(&self) -> Result<(), FrameError> {
        let mut with_ids: &[u32] = &[];
        if let Some(tokens) = &self.tokens {
            tokens.check(&self.counts)?;
            with_ids = &tokens.rows;
        }
        let mut asked = self
            .logprobs
            .iter()
            .flat_map(|logprobs| logprobs.rows.iter());
        match asked.find(|row| with_ids.binary_search(row).is_err()) {
            Some(&row) => Err(FrameError::NoIds { row }),
            None => Ok(()),
        }
    }
}

fn check_logprobs(
    counts: &[u32],
    logprobs: Option<&Logprobs>,
    prompts: &[PromptLogprobs],
) -> Result<(), FrameError> {
    if let Some(logprobs) = logprobs {
        logprobs.check(counts)?;
    }
    prompts
        .iter()
        .try_for_each(|prompt| prompt.check(counts.len()))
}

pub(crate) fn check_length(len: usize, rows: usize) -> Result<(), FrameError> {
    if len == rows {
        Ok(())
    } else {
        Err(FrameError::Length { len, rows })
    }
}

/// Rows exist and ascend.
pub(crate) fn check_rows(chosen: &[u32], rows: usize) -> Result<(), FrameError> {
    if let Some(pair) = chosen.windows(2).find(|pair| pair[1] <= pair[0]) {
        return Err(FrameError::Order {
            row: pair[1],
            before: pair[0],
        });
    }
    match chosen.last() {
        Some(&row) if row as usize >= rows => Err(FrameError::Row { row, rows }),
        _ => Ok(()),
    }
}

pub(crate) fn check_values(values: usize, wanted: u64) -> Result<(), FrameError> {
    if values as u64 == wanted {
        Ok(())
    } else {
        Err(FrameError::Values { values, wanted })
    }
}

fn check_marks(rows: usize, first: &[First], finished: &[Finished]) -> Result<(), FrameError> {
    let first = first.iter().map(|mark| mark.row);
    let finished = finished.iter().map(|mark| mark.row);
    match first.chain(finished).find(|&row| row as usize >= rows) {
        Some(row) => Err(FrameError::Row { row, rows }),
        None => Ok(()),
    }
}
