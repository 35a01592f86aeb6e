//! What clients read: chunks that parse, agree with the whole answer, and follow the protocol.

use bytes::BytesMut;
use llmrt_wire::{FinishReason, Outcome, RequestId};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::response::{Answer, StopReason, body, response_id};
use super::super::{Choice, ChunkWriter, Endpoint, Envelope, Finish, Parts, Streaming, Usage};

const ENVELOPE: Envelope = Envelope {
    id: "chatcmpl-1",
    created: 7,
    model: "org/m\"odel\\",
};
const USAGE: Usage = Usage {
    prompt_tokens: 5,
    completion_tokens: 9,
    cached_tokens: 3,
};
const STOP: Finish = Finish {
    reason: FinishReason::Stop,
    stop: StopReason::None,
};

fn streaming(include_usage: bool) -> Streaming {
    Streaming {
        stream: true,
        include_usage,
        continuous_usage: false,
    }
}

/// JSON of each event; the last must be `[DONE]`.
fn events(out: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(out).unwrap();
    let mut data: Vec<&str> = text.strip_suffix("\n\n").unwrap().split("\n\n").collect();
    assert_eq!(data.pop(), Some("data: [DONE]"));
    data.iter()
        .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
        .collect()
}

fn stream(
    endpoint: Endpoint,
    include_usage: bool,
    deltas: &[String],
    rest: &str,
    finish: &Finish,
) -> Vec<Value> {
    let writer = ChunkWriter::new(endpoint, &ENVELOPE, streaming(include_usage));
    let (mut out, mut choice) = (BytesMut::new(), Choice::new(0));
    for delta in deltas {
        writer.text(&mut out, &mut choice, delta, USAGE);
    }
    writer.text(&mut out, &mut choice, rest, USAGE);
    writer.finish(&mut out, &mut choice, None, finish, USAGE);
    writer.end(&mut out, USAGE);
    events(&out)
}

fn answer<'a>(text: &'a str, finish: Finish<'a>) -> Answer<'a> {
    static NOTHING: Parts = Parts {
        echo: None,
        logprobs: None,
        token_ids: None,
        prompt_token_ids: None,
        prompt_logprobs: None,
    };
    Answer {
        index: 0,
        text,
        finish,
        parts: &NOTHING,
    }
}

fn content(endpoint: Endpoint, choice: &Value) -> &str {
    let text = match endpoint {
        Endpoint::Chat => &choice["delta"]["content"],
        Endpoint::Completions => &choice["text"],
    };
    text.as_str().unwrap_or_default()
}

fn finish() -> impl Strategy<Value = (FinishReason, Option<u32>, Option<String>)> {
    let reason = prop_oneof![
        Just(FinishReason::Stop),
        Just(FinishReason::Length),
        Just(FinishReason::Abort)
    ];
    (reason, any::<Option<u32>>(), any::<Option<String>>())
}

proptest! {
    #[test]
    fn a_stream_says_what_the_whole_answer_says(
        chat in any::<bool>(),
        include_usage in any::<bool>(),
        deltas in proptest::collection::vec(any::<String>(), 0..8),
        rest in any::<String>(),
        (reason, token, text) in finish(),
    ) {
        let endpoint = if chat { Endpoint::Chat } else { Endpoint::Completions };
        let stop = text.as_deref().map(StopReason::Text).or(token.map(StopReason::Token)).unwrap_or(StopReason::None);
        let finish = Finish { reason, stop };
        let whole = deltas.concat() + &rest;
        let unary = body(endpoint, &ENVELOPE, &[answer(&whole, finish)], USAGE);
        let unary: Value = serde_json::from_slice(&unary).unwrap();
        let mut chunks = stream(endpoint, include_usage, &deltas, &rest, &finish);
        if include_usage {
            let last = chunks.pop().unwrap();
            prop_assert_eq!(&last["choices"], &json!([]));
            prop_assert_eq!(&last["usage"], &unary["usage"]);
        }
        let mut streamed = String::new();
        let (last, others) = chunks.split_last().unwrap();
        for chunk in &chunks {
            for member in ["id", "created", "model"] {
                prop_assert_eq!(&chunk[member], &unary[member]);
            }
            prop_assert_eq!(chunk.get("usage"), include_usage.then_some(&Value::Null));
            streamed += content(endpoint, &chunk["choices"][0]);
        }
        for chunk in others {
            prop_assert_eq!(chunk["choices"][0].get("finish_reason"), Some(&Value::Null));
            prop_assert!(!content(endpoint, &chunk["choices"][0]).is_empty());
        }
        let (choice, expected) = (&last["choices"][0], &unary["choices"][0]);
        prop_assert_eq!(&choice["finish_reason"], &expected["finish_reason"]);
        prop_assert_eq!(&choice["stop_reason"], &expected["stop_reason"]);
        let said = if chat { &expected["message"]["content"] } else { &expected["text"] };
        prop_assert_eq!(said, &json!(streamed));
    }
}

#[test]
fn the_bytes_of_a_chat_stream() {
    let writer = ChunkWriter::new(
        Endpoint::Chat,
        &Envelope {
            model: "m",
            ..ENVELOPE
        },
        streaming(false),
    );
    let (mut out, mut choice) = (BytesMut::new(), Choice::new(0));
    writer.text(&mut out, &mut choice, "Hi", USAGE);
    writer.text(&mut out, &mut choice, "\n\u{1f600}\u{1}", USAGE);
    writer.finish(&mut out, &mut choice, None, &STOP, USAGE);
    writer.end(&mut out, USAGE);
    let head = r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":"#;
    let expected = [
        head,
        r#"{"role":"assistant","content":"Hi"},"logprobs":null,"finish_reason":null}]}"#,
        "\n\n",
        head,
        r#"{"content":"\n😀\u0001"},"logprobs":null,"finish_reason":null}]}"#,
        "\n\n",
        head,
        r#"{},"logprobs":null,"finish_reason":"stop","stop_reason":null}]}"#,
        "\n\n",
        "data: [DONE]\n\n",
    ];
    assert_eq!(std::str::from_utf8(&out).unwrap(), expected.concat());
}

#[test]
fn the_bytes_of_a_completion_stream() {
    let writer = ChunkWriter::new(
        Endpoint::Completions,
        &Envelope {
            model: "m",
            ..ENVELOPE
        },
        streaming(true),
    );
    let (mut out, mut choice) = (BytesMut::new(), Choice::new(0));
    writer.text(&mut out, &mut choice, "Hi", USAGE);
    let finish = Finish {
        reason: FinishReason::Stop,
        stop: StopReason::Text("\""),
    };
    writer.finish(&mut out, &mut choice, None, &finish, USAGE);
    writer.end(&mut out, USAGE);
    let head = r#"data: {"id":"chatcmpl-1","object":"text_completion","created":7,"model":"m","choices":["#;
    let expected = [
        head,
        r#"{"index":0,"text":"Hi","logprobs":null,"finish_reason":null}],"usage":null}"#,
        "\n\n",
        head,
        r#"{"index":0,"text":"","logprobs":null,"finish_reason":"stop","stop_reason":"\""}],"usage":null}"#,
        "\n\n",
        head,
        r#"],"usage":{"prompt_tokens":5,"total_tokens":14,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":3}}}"#,
        "\n\n",
        "data: [DONE]\n\n",
    ];
    assert_eq!(std::str::from_utf8(&out).unwrap(), expected.concat());
}

#[test]
fn usage_in_every_chunk() {
    let streaming = Streaming {
        continuous_usage: true,
        ..streaming(true)
    };
    let writer = ChunkWriter::new(Endpoint::Chat, &ENVELOPE, streaming);
    let (mut out, mut choice) = (BytesMut::new(), Choice::new(0));
    let first = Usage {
        completion_tokens: 1,
        ..USAGE
    };
    writer.text(&mut out, &mut choice, "x", first);
    writer.finish(&mut out, &mut choice, None, &STOP, USAGE);
    writer.end(&mut out, USAGE);
    let chunks = events(&out);
    let told = chunks
        .iter()
        .map(|chunk| &chunk["usage"]["completion_tokens"]);
    assert_eq!(told.collect::<Vec<_>>(), [1, 9, 9]);
}

#[test]
fn an_answer_without_text_still_opens_and_finishes() {
    let chunks = stream(Endpoint::Chat, false, &[String::new()], "", &STOP);
    assert_eq!(chunks.len(), 1);
    assert_eq!(
        chunks[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    assert_eq!(chunks[0]["choices"][0]["finish_reason"], "stop");
}

#[test]
fn nothing_follows_a_finish() {
    let writer = ChunkWriter::new(Endpoint::Chat, &ENVELOPE, streaming(false));
    let (mut out, mut choice) = (BytesMut::new(), Choice::new(0));
    writer.finish(&mut out, &mut choice, None, &STOP, USAGE);
    let size = out.len();
    writer.text(&mut out, &mut choice, "b", USAGE);
    writer.finish(&mut out, &mut choice, None, &STOP, USAGE);
    assert!(choice.is_finished() && out.len() == size);
}

#[test]
fn choices_are_told_apart() {
    let writer = ChunkWriter::new(Endpoint::Chat, &ENVELOPE, streaming(false));
    let mut out = BytesMut::new();
    let mut choices = [Choice::new(0), Choice::new(1), Choice::new(4_294_967_295)];
    for choice in &mut choices {
        writer.text(&mut out, choice, "x", USAGE);
        writer.finish(&mut out, choice, None, &STOP, USAGE);
    }
    writer.end(&mut out, USAGE);
    let chunks = events(&out);
    let of = |index: u32| {
        chunks
            .iter()
            .filter(move |chunk| chunk["choices"][0]["index"] == index)
    };
    for index in [0, 1, u32::MAX] {
        let roles = of(index).filter(|chunk| chunk["choices"][0]["delta"]["role"] == "assistant");
        let ends = of(index).filter(|chunk| chunk["choices"][0]["finish_reason"] == "stop");
        assert_eq!((roles.count(), ends.count()), (1, 1));
    }
}

#[test]
fn a_chunk_fits_the_buffer_it_reserves() {
    let writer = ChunkWriter::new(Endpoint::Chat, &ENVELOPE, streaming(true));
    let mut choice = Choice::new(u32::MAX);
    let mut out = BytesMut::with_capacity(1024);
    let start = out.as_ptr();
    for _ in 0..1000 {
        out.clear();
        writer.text(&mut out, &mut choice, "text\n", USAGE);
        assert_eq!(out.as_ptr(), start);
    }
}

#[test]
fn stop_reasons() {
    let outcome = |stop_token, stop_string: Option<&str>| Outcome {
        reason: FinishReason::Stop,
        stop_token,
        stop_string: stop_string.map(str::to_owned),
        status: 0,
        message: String::new(),
    };
    assert_eq!(
        Finish::new(&outcome(Some(2), None), &[]).stop,
        StopReason::None
    );
    assert_eq!(
        Finish::new(&outcome(Some(2), None), &[5, 2]).stop,
        StopReason::Token(2)
    );
    assert_eq!(
        Finish::new(&outcome(None, Some("x")), &[]).stop,
        StopReason::Text("x")
    );
}

#[test]
fn whole_answers() {
    let answer = answer("Hi", STOP);
    let chat: Value =
        serde_json::from_slice(&body(Endpoint::Chat, &ENVELOPE, &[answer], USAGE)).unwrap();
    let expected = json!({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 7, "model": "org/m\"odel\\",
        "choices": [{
            "index": 0, "message": {"role": "assistant", "content": "Hi", "refusal": null},
            "logprobs": null, "finish_reason": "stop", "stop_reason": null,
        }],
        "usage": {
            "prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14,
            "prompt_tokens_details": {"cached_tokens": 3},
        },
    });
    assert_eq!(chat, expected);
    let text: Value =
        serde_json::from_slice(&body(Endpoint::Completions, &ENVELOPE, &[answer], USAGE)).unwrap();
    assert_eq!(
        (&text["object"], &text["choices"][0]["text"]),
        (&json!("text_completion"), &json!("Hi"))
    );
}

#[test]
fn ids_name_endpoint_process_and_request() {
    let request = RequestId::new(1, 2, 3);
    let chat = response_id(Endpoint::Chat, 0xabc, request);
    assert_eq!(chat, "chatcmpl-0000000000000abc0010200000000003");
    assert!(response_id(Endpoint::Completions, 0, request).starts_with("cmpl-"));
}
