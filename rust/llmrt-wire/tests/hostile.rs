//! Foreign bytes: nothing panics, and whatever is read has been written exactly so.

mod common;

use common::valid;
use llmrt_wire::{
    LogprobRow, Message, Output, Request, RequestId, Sampling, Submit, TextFrame, TokenFrame,
    greeting_version,
};
use proptest::prelude::*;

/// A change of one byte, a cut or an insertion, somewhere in a golden message.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let originals: Vec<Vec<u8>> = valid()
        .iter()
        .map(|(_, message)| message.encode())
        .collect();
    let edit = (any::<prop::sample::Index>(), any::<u8>(), 0..3u8);
    let edits = prop::collection::vec(edit, 1..4);
    (prop::sample::select(originals), edits).prop_map(|(mut raw, edits)| {
        for (at, byte, what) in edits {
            let at = at.index(raw.len() + 1);
            match what {
                0 if at < raw.len() => raw[at] = byte,
                1 => raw.truncate(at),
                _ => raw.insert(at, byte),
            }
        }
        raw
    })
}

fn check(raw: &[u8]) -> Result<(), TestCaseError> {
    let _ = greeting_version(raw);
    if let Ok(message) = Message::decode(raw) {
        prop_assert_eq!(message.encode(), raw);
    }
    Ok(())
}

fn request() -> impl Strategy<Value = Request> {
    let sampling = (
        any::<f64>(),
        any::<Option<u64>>(),
        any::<bool>(),
        any::<Vec<u32>>(),
    )
        .prop_map(|(temperature, seed, ignore_eos, stop_token_ids)| Sampling {
            temperature,
            seed,
            ignore_eos,
            stop_token_ids,
            ..Sampling::default()
        });
    let output = any::<Vec<String>>().prop_map(|stop| Output {
        stop,
        ..Output::default()
    });
    (
        any::<u64>(),
        any::<Vec<u32>>(),
        sampling,
        output,
        any::<i32>(),
        any::<String>(),
    )
        .prop_map(
            |(id, prompt, sampling, output, priority, cache_salt)| Request {
                id: RequestId(id),
                prompt: prompt.into(),
                sampling,
                output,
                priority,
                cache_salt,
                deadline_ms: None,
            },
        )
}

fn token_frame() -> impl Strategy<Value = TokenFrame> {
    let rows = prop::collection::vec(
        (any::<u64>(), prop::collection::vec(any::<u32>(), 0..5)),
        0..40,
    );
    (any::<u64>(), rows).prop_map(|(step, rows)| TokenFrame {
        step,
        ids: rows.iter().map(|row| row.0).collect::<Vec<_>>().into(),
        counts: rows
            .iter()
            .map(|row| row.1.len() as u32)
            .collect::<Vec<_>>()
            .into(),
        tokens: rows
            .into_iter()
            .flat_map(|row| row.1)
            .collect::<Vec<_>>()
            .into(),
        ..TokenFrame::default()
    })
}

/// A row with text and tokens, of which ids and log probabilities may be told.
type Row = (String, Vec<u32>, Option<Option<u32>>);

fn rows() -> impl Strategy<Value = Vec<Row>> {
    let tokens = prop::collection::vec(any::<u32>(), 0..5);
    let told = prop::option::of(prop::option::of(0..4_u32));
    prop::collection::vec((any::<String>(), tokens, told), 0..20)
}

/// Values that tell tokens apart.
fn values(top: u32, tokens: &[u32]) -> (Vec<f32>, Vec<u32>) {
    let chosen = tokens.iter().map(|&token| -(token as f32)).collect();
    let tops = tokens
        .iter()
        .flat_map(|&token| (0..top).map(move |rank| token ^ rank))
        .collect();
    (chosen, tops)
}

fn text_frame(rows: &[Row]) -> TextFrame {
    let mut frame = TextFrame::default();
    for (row, (text, tokens, told)) in (0..).zip(rows) {
        frame.ids.push(u64::from(row));
        frame.counts.push(tokens.len() as u32);
        frame.text.push_str(text);
        frame.ends.push(frame.text.len() as u32);
        let Some(top) = told else { continue };
        frame.tokens.get_or_insert_default().push(row, tokens);
        let Some(top) = *top else { continue };
        let (chosen, top_ids) = values(top, tokens);
        let top_logprobs: Vec<f32> = top_ids.iter().map(|&id| id as f32).collect();
        let values = LogprobRow {
            top,
            chosen: &chosen,
            top_ids: &top_ids,
            top_logprobs: &top_logprobs,
        };
        frame.logprobs.get_or_insert_default().push(row, values);
    }
    frame
}

proptest! {
    #[test]
    fn random_bytes_never_panic(raw in prop::collection::vec(any::<u8>(), 0..200)) {
        check(&raw)?;
    }

    #[test]
    fn random_fields_never_panic(kind in 0..40u8, rest in prop::collection::vec(any::<u8>(), 0..60)) {
        let mut raw = vec![0x98, kind];
        raw.extend(rest);
        check(&raw)?;
    }

    #[test]
    fn damaged_messages_are_refused_or_other_messages(raw in mutated()) {
        check(&raw)?;
    }

    #[test]
    fn requests_survive(requests in prop::collection::vec(request(), 0..4)) {
        let message = Message::from(Submit { requests, ..Submit::default() });
        // Bytes, not values: a NaN is not equal to itself.
        prop_assert_eq!(Message::decode(&message.encode()).unwrap().encode(), message.encode());
    }

    #[test]
    fn token_frames_survive(frame in token_frame()) {
        let message = Message::from(frame);
        prop_assert_eq!(Message::decode(&message.encode()).unwrap(), message);
    }

    #[test]
    fn text_frames_survive(rows in rows()) {
        let message = Message::from(text_frame(&rows));
        prop_assert_eq!(Message::decode(&message.encode()).unwrap(), message);
    }

    #[test]
    fn rows_get_their_own_tokens_and_log_probabilities_back(rows in rows()) {
        let frame = text_frame(&rows);
        let of = |row: u32| &rows[row as usize].1;
        let mut with_ids = Vec::new();
        for (row, ids) in frame.tokens.iter().flat_map(|tokens| tokens.iter(&frame.counts)) {
            prop_assert_eq!(ids, of(row));
            with_ids.push(row as usize);
        }
        let mut with_logprobs = Vec::new();
        for (row, got) in frame.logprobs.iter().flat_map(|logprobs| logprobs.iter(&frame.counts)) {
            let (chosen, top_ids) = values(got.top, of(row));
            prop_assert_eq!((got.chosen, got.top_ids), (chosen.as_slice(), top_ids.as_slice()));
            prop_assert_eq!(got.top_logprobs.len(), top_ids.len());
            with_logprobs.push((row as usize, got.top));
        }
        let told = |row: &(usize, &Row)| row.1.2.is_some();
        let asked: Vec<usize> = rows.iter().enumerate().filter(told).map(|(row, _)| row).collect();
        prop_assert_eq!(with_ids, asked);
        let asked: Vec<(usize, u32)> = rows
            .iter()
            .enumerate()
            .filter_map(|(row, (_, _, told))| told.flatten().map(|top| (row, top)))
            .collect();
        prop_assert_eq!(with_logprobs, asked);
    }
}
