//! Checking a frame before its rows are cut apart: a detokenizer is trusted no more than any other peer.

use llmrt_wire::TextFrame;

/// Why a frame was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("its columns have {ids} ids, {counts} counts and {ends} ends")]
    Columns {
        ids: usize,
        counts: usize,
        ends: usize,
    },
    #[error("the end of row {0} is not a character boundary behind the row before")]
    End(usize),
    #[error("{0} bytes of text belong to no row")]
    Rest(usize),
    #[error("it speaks of row {row} of {rows}")]
    Row { row: u32, rows: usize },
}

/// Checks that every row can be cut out of `frame`.
pub fn check(frame: &TextFrame) -> Result<(), FrameError> {
    let rows = frame.ids.len();
    if frame.counts.len() != rows || frame.ends.len() != rows {
        return Err(FrameError::Columns {
            ids: rows,
            counts: frame.counts.len(),
            ends: frame.ends.len(),
        });
    }
    let mut start = 0;
    for (row, end) in frame.ends.iter().enumerate() {
        let end = *end as usize;
        if end < start || !frame.text.is_char_boundary(end) {
            return Err(FrameError::End(row));
        }
        start = end;
    }
    if start != frame.text.len() {
        return Err(FrameError::Rest(frame.text.len() - start));
    }
    let first = frame.first.iter().map(|first| first.row);
    let finished = frame.finished.iter().map(|finished| finished.row);
    match first.chain(finished).find(|row| *row as usize >= rows) {
        Some(row) => Err(FrameError::Row { row, rows }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmrt_wire::{FinishReason, Finished, First, Outcome};
    use proptest::prelude::*;

    fn frame(ids: Vec<u64>, counts: Vec<u32>, ends: Vec<u32>, text: &str) -> TextFrame {
        TextFrame {
            ids: ids.into(),
            counts: counts.into(),
            ends: ends.into(),
            text: text.to_owned(),
            ..TextFrame::default()
        }
    }

    #[test]
    fn whole_frames_pass() {
        assert_eq!(
            check(&frame(vec![1, 2, 3], vec![1, 1, 0], vec![2, 5, 5], "é世")),
            Ok(())
        );
        assert_eq!(check(&TextFrame::default()), Ok(()));
    }

    #[test]
    fn each_defect_is_named() {
        let columns = FrameError::Columns {
            ids: 1,
            counts: 0,
            ends: 1,
        };
        assert_eq!(check(&frame(vec![1], vec![], vec![0], "")), Err(columns));
        assert_eq!(
            check(&frame(vec![1], vec![1], vec![1], "é")),
            Err(FrameError::End(0))
        );
        assert_eq!(
            check(&frame(vec![1, 2], vec![1, 1], vec![2, 1], "ab")),
            Err(FrameError::End(1))
        );
        assert_eq!(
            check(&frame(vec![1], vec![1], vec![9], "ab")),
            Err(FrameError::End(0))
        );
        assert_eq!(
            check(&frame(vec![1], vec![1], vec![1], "abc")),
            Err(FrameError::Rest(2))
        );
        let mut first = frame(vec![1], vec![1], vec![1], "a");
        first.first.push(First {
            row: 1,
            cached_tokens: 0,
            queue_us: 0,
            prefill_us: 0,
        });
        assert_eq!(check(&first), Err(FrameError::Row { row: 1, rows: 1 }));
        let mut finished = frame(vec![1], vec![1], vec![1], "a");
        let outcome = Outcome {
            reason: FinishReason::Stop,
            stop_token: None,
            stop_string: None,
            status: 0,
            message: String::new(),
        };
        finished.finished.push(Finished { row: 7, outcome });
        assert_eq!(check(&finished), Err(FrameError::Row { row: 7, rows: 1 }));
    }

    proptest! {
        #[test]
        fn a_passing_frame_can_be_cut(ends in prop::collection::vec(0u32..12, 0..5), text in ".{0,4}") {
            let rows = ends.len();
            let frame = frame(vec![0; rows], vec![1; rows], ends, &text);
            if check(&frame).is_ok() {
                let mut start = 0;
                let mut whole = String::new();
                for end in frame.ends.iter() {
                    whole.push_str(&frame.text[start..*end as usize]);
                    start = *end as usize;
                }
                prop_assert_eq!(whole, frame.text);
            }
        }
    }
}
