//! Whether the columns of a frame fit together.

use crate::frame::{Finished, First, TextFrame, TokenFrame};

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
        check_marks(rows, &self.first, &self.finished)
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
        match self.text.len() - start {
            0 => check_marks(rows, &self.first, &self.finished),
            bytes => Err(FrameError::Rest { bytes }),
        }
    }
}

fn check_length(len: usize, rows: usize) -> Result<(), FrameError> {
    if len == rows {
        Ok(())
    } else {
        Err(FrameError::Length { len, rows })
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
