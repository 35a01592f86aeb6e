//! A small engine and requests to it.

// Each test file uses its own part.
#![allow(dead_code)]

use llmrt_mock::{Limits, Pattern, State};
use llmrt_wire::{Output, Request, RequestId, Sampling};

pub const VOCAB: u32 = 100;
pub const EOS: u32 = 2;

pub fn limits() -> Limits {
    Limits {
        max_model_len: 1000,
        vocab_size: VOCAB,
        max_num_seqs: 64,
        max_requests: 128,
        eos_token_ids: vec![EOS],
        answer_tokens: 0,
        cached_tokens: 0,
        detokenizers: 1,
    }
}

/// An engine that says 7, 8, 9 and starts again.
pub fn state() -> State {
    let tokens = [7, 8, 9].into();
    State::new(limits(), Pattern::Tokens { tokens })
}

pub fn request(sequence: u64, prompt: &[u32]) -> Request {
    Request {
        id: RequestId::new(0, 0, sequence),
        prompt: prompt.to_vec().into(),
        sampling: Sampling::default(),
        output: Output::default(),
        priority: 0,
        cache_salt: String::new(),
        deadline_ms: None,
    }
}
