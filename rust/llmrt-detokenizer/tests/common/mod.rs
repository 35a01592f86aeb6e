//! A small tokenizer, and frames made by hand.

// Each test file uses its own part.
#![allow(dead_code)]

use std::fmt::Write as _;
use std::sync::Arc;

use llmrt_text::decode::TokenDecoder;
use llmrt_wire::{
    FinishReason, Finished, First, LogprobRow, Opened, Outcome, Output, PromptLogprobs, RequestId,
    TokenFrame,
};
use tokenizers::Tokenizer;

/// The special token.
pub const END: u32 = 256;
/// "hello ".
pub const HELLO: u32 = 257;
/// "日本".
pub const JAPAN: u32 = 258;
pub const VOCAB: u32 = 259;

/// Tokens 0 to 255 are the bytes; see also the constants above.
pub fn decoder() -> TokenDecoder {
    let mut vocab = String::new();
    for byte in 0..=255u8 {
        write!(vocab, "\"<0x{byte:02X}>\":{byte},").expect("writing to a string works");
    }
    let json = format!(
        r#"{{"version":"1.0","truncation":null,"padding":null,"normalizer":null,"pre_tokenizer":null,"post_processor":null,
            "added_tokens":[{{"id":{END},"content":"<|end|>","special":true,"single_word":false,"lstrip":false,
                             "rstrip":false,"normalized":false}}],
            "decoder":{{"type":"Sequence","decoders":[{{"type":"ByteFallback"}},{{"type":"Fuse"}}]}},
            "model":{{"type":"WordLevel","unk_token":"?",
                     "vocab":{{{vocab}"<|end|>":{END},"hello ":{HELLO},"日本":{JAPAN}}}}}}}"#
    );
    TokenDecoder::new(Arc::new(
        Tokenizer::from_bytes(json).expect("a valid tokenizer"),
    ))
}

/// The bytes of a token, for oracles.
pub fn bytes(token: u32) -> Vec<u8> {
    match token {
        0..=255 => vec![token as u8],
        HELLO => b"hello ".to_vec(),
        JAPAN => "日本".into(),
        _ => Vec::new(),
    }
}

pub fn id(worker: u16, sequence: u64) -> RequestId {
    RequestId::new(worker, 0, sequence)
}

/// The tokens of a text, byte by byte.
pub fn tokens(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

pub fn stops(stops: &[&str]) -> Output {
    Output {
        stop: stops.iter().map(|&stop| stop.to_owned()).collect(),
        ..Output::default()
    }
}

pub fn outcome(reason: FinishReason) -> Outcome {
    Outcome {
        reason,
        stop_token: None,
        stop_string: None,
        status: 0,
        message: String::new(),
    }
}

/// Builds a token frame.
#[derive(Default)]
pub struct Step(pub TokenFrame);

impl Step {
    pub fn open(mut self, id: RequestId, output: Output) -> Self {
        self.0.opened.push(Opened {
            id,
            prompt_tail: Vec::new().into(),
            output,
        });
        self
    }

    pub fn row(mut self, id: RequestId, tokens: &[u32]) -> Self {
        self.0.ids.push(id.0);
        self.0.counts.push(tokens.len() as u32);
        self.0.tokens.extend_from_slice(tokens);
        self
    }

    /// Log probabilities of the last row's tokens, and of a prompt of two tokens.
    pub fn logprobs(mut self, top: u32, chosen: &[f32], top_ids: &[u32], prompt: bool) -> Self {
        let row = self.0.ids.len() as u32 - 1;
        let values = LogprobRow {
            top,
            chosen,
            top_ids,
            top_logprobs: &vec![-2.5; top_ids.len()],
        };
        if !chosen.is_empty() {
            self.0.logprobs.get_or_insert_default().push(row, values);
        }
        if prompt {
            self.0.prompt_logprobs.push(PromptLogprobs {
                row,
                chosen: vec![-1.5].into(),
                ..PromptLogprobs::default()
            });
        }
        self
    }

    pub fn first(mut self, cached_tokens: u32) -> Self {
        let row = self.0.ids.len() as u32 - 1;
        self.0.first.push(First {
            row,
            cached_tokens,
            queue_us: 1,
            prefill_us: 2,
        });
        self
    }

    pub fn end(mut self, outcome: Outcome) -> Self {
        let row = self.0.ids.len() as u32 - 1;
        self.0.finished.push(Finished { row, outcome });
        self
    }
}
