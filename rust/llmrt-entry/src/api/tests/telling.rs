//! What is told beside the text: forms, lengths, offsets, bytes.

use std::sync::Arc;

use llmrt_text::Tokenizer;
use llmrt_wire::{LogprobRow, PromptLogprobs};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::{Details, Endpoint, Names, Parts, Prompted, Row, Telling, Told};
use crate::tests::rig::byte_tokenizer;

fn names(as_ids: bool) -> Names {
    let tokenizer = Tokenizer::from_json(byte_tokenizer().as_bytes()).unwrap();
    Names::new(tokenizer, as_ids)
}

fn telling(endpoint: Endpoint, details: Details, prompt: &str) -> Telling {
    let prompt = Prompted {
        tokens: prompt.bytes().map(u32::from).collect(),
        echo: details.echo.then(|| prompt.to_owned()),
        skips_special: true,
    };
    let names = names(details.tokens_as_ids);
    Telling::new(
        endpoint,
        Arc::new(details),
        names,
        Arc::new(prompt),
        true,
        true,
    )
}

/// The bytes of `text` as tokens, each with itself and `z` as the likeliest ones.
fn told(text: &[u8]) -> Told {
    let mut told = Told::default();
    for &byte in text {
        told.add(&Row {
            tokens: 1,
            ids: &[u32::from(byte)],
            logprobs: LogprobRow {
                top: 2,
                chosen: &[-0.5],
                top_ids: &[u32::from(byte), u32::from(b'z')],
                top_logprobs: &[-0.5, f32::NEG_INFINITY],
            },
            ..Row::default()
        });
    }
    told
}

fn with_prompt(mut told: Told, prompt: &[u8]) -> Told {
    let rest = prompt.len() - 1;
    let logprobs = PromptLogprobs {
        row: 0,
        top: 1,
        chosen: vec![-1.0; rest].into(),
        top_ids: vec![u32::from(b'q'); rest].into(),
        top_logprobs: vec![-0.25; rest].into(),
    };
    told.add(&Row {
        prompt: Some(&logprobs),
        ..Row::default()
    });
    told
}

fn parsed(parts: &Parts) -> Value {
    let raw = parts.logprobs.as_ref().map_or("null", |raw| raw.get());
    serde_json::from_str(raw).unwrap()
}

fn asking(logprobs: u32) -> Details {
    Details {
        logprobs: Some(logprobs),
        ..Details::default()
    }
}

#[test]
fn a_chats_tokens_have_exact_bytes() {
    let mut telling = telling(Endpoint::Chat, asking(2), "x");
    let parts = telling.parts(told("é".as_bytes()));
    let entry = |token: &str, byte: u8| {
        json!({
            "token": token, "logprob": -0.5, "bytes": [byte],
            "top_logprobs": [
                {"token": token, "logprob": -0.5, "bytes": [byte]},
                {"token": "z", "logprob": -9999.0, "bytes": [122]},
            ],
        })
    };
    let expected = json!({
        "content": [entry("\u{fffd}", 0xc3), entry("\u{fffd}", 0xa9)], "refusal": null,
    });
    assert_eq!(parsed(&parts), expected);
    assert!(telling.parts(Told::default()).logprobs.is_none());
}

#[test]
fn offsets_count_characters_and_go_on_from_part_to_part() {
    let mut telling = telling(Endpoint::Completions, asking(1), "x");
    let first = parsed(&telling.parts(told("aé".as_bytes())));
    assert_eq!(first["text_offset"], json!([0, 1, 1]));
    assert_eq!(first["tokens"], json!(["a", "\u{fffd}", "\u{fffd}"]));
    assert_eq!(first["token_logprobs"], json!([-0.5, -0.5, -0.5]));
    assert_eq!(first["top_logprobs"][0], json!({"a": -0.5}));
    let second = parsed(&telling.parts(told(b"b")));
    assert_eq!(second["text_offset"], json!([2]));
}

#[test]
fn an_echo_tells_the_prompt_first() {
    let details = Details {
        echo: true,
        token_ids: true,
        prompt_logprobs: Some(1),
        ..asking(1)
    };
    let mut telling = telling(Endpoint::Completions, details, "hé");
    let parts = telling.parts(with_prompt(told(b"!"), "hé".as_bytes()));
    assert_eq!(parts.before(), "hé");
    let logprobs = parsed(&parts);
    assert_eq!(logprobs["text_offset"], json!([0, 1, 1, 2]));
    assert_eq!(logprobs["token_logprobs"], json!([null, -1.0, -1.0, -0.5]));
    assert_eq!(logprobs["top_logprobs"][0], json!(null));
    assert_eq!(
        logprobs["top_logprobs"][1],
        json!({"\u{fffd}": -1.0, "q": -0.25})
    );
    assert_eq!(parts.token_ids, Some(vec![33]));
    assert_eq!(parts.prompt_token_ids, Some(vec![104, 0xc3, 0xa9]));
    let prompt: Value = serde_json::from_str(parts.prompt_logprobs.unwrap().get()).unwrap();
    assert_eq!(prompt[0], json!(null));
    let second = json!({
        "195": {"logprob": -1.0, "rank": null, "decoded_token": "\u{fffd}"},
        "113": {"logprob": -0.25, "rank": 1, "decoded_token": "q"},
    });
    assert_eq!(prompt[1], second);
    // Only once.
    let more = telling.parts(told(b"?"));
    assert!(more.before().is_empty() && more.prompt_token_ids.is_none());
    assert_eq!(parsed(&more)["text_offset"], json!([3]));
}

#[test]
fn tokens_can_be_named_by_their_ids() {
    let details = Details {
        tokens_as_ids: true,
        ..asking(2)
    };
    let mut telling = telling(Endpoint::Completions, details.clone(), "x");
    let parts = parsed(&telling.parts(told(b"a")));
    assert_eq!(parts["tokens"], json!(["token_id:97"]));
    assert_eq!(
        parts["top_logprobs"],
        json!([{"token_id:97": -0.5, "token_id:122": -9999.0}])
    );
    let mut telling = self::telling(Endpoint::Chat, details, "x");
    let parts = parsed(&telling.parts(told(b"a")));
    assert_eq!(parts["content"][0]["token"], "token_id:97");
    assert_eq!(parts["content"][0]["bytes"], json!([97]));
}

proptest! {
    /// However an answer is cut into parts, they add up to what the whole one tells.
    #[test]
    fn parts_add_up(text in "\\PC{0,12}", cuts in proptest::collection::vec(0usize..24, 0..4)) {
        let bytes = text.as_bytes();
        let mut whole = telling(Endpoint::Completions, asking(2), "x");
        let whole = parsed(&whole.parts(told(bytes)));
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let mut telling = telling(Endpoint::Completions, asking(2), "x");
        for member in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            prop_assert_eq!(whole[member].as_array().map_or(0, Vec::len), bytes.len());
        }
        let mut offsets = Vec::new();
        for pair in cuts.windows(2) {
            let part = parsed(&telling.parts(told(&bytes[pair[0]..pair[1]])));
            offsets.extend(part["text_offset"].as_array().cloned().unwrap_or_default());
        }
        prop_assert_eq!(json!(offsets), whole.get("text_offset").cloned().unwrap_or(json!([])));
    }
}
