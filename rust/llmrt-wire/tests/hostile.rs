//! Foreign bytes: nothing panics, and whatever is read has been written exactly so.

mod common;

use common::valid;
use llmrt_wire::{
    Message, Output, Request, RequestId, Sampling, Submit, TextFrame, TokenFrame, greeting_version,
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

fn text_frame() -> impl Strategy<Value = TextFrame> {
    let rows = prop::collection::vec((any::<u64>(), any::<u32>(), any::<String>()), 0..20);
    (any::<u64>(), rows).prop_map(|(step, rows)| {
        let mut frame = TextFrame {
            step,
            ..TextFrame::default()
        };
        for (id, count, text) in rows {
            frame.ids.push(id);
            frame.counts.push(count);
            frame.text.push_str(&text);
            frame.ends.push(frame.text.len() as u32);
        }
        frame
    })
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
    fn text_frames_survive(frame in text_frame()) {
        let message = Message::from(frame);
        prop_assert_eq!(Message::decode(&message.encode()).unwrap(), message);
    }
}
