//! What an entry worker sends to the scheduler, and what the detokenizer adds.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::column::Column;
use crate::message::Tag;

/// Identity and routing of a request: `worker (12 bit) | shard (8 bit) | sequence (44 bit)`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestId(pub u64);

impl RequestId {
    /// Workers that fit the id.
    pub const MAX_WORKERS: u16 = 1 << 12;
    const SEQUENCE_BITS: u32 = 44;
    const SHARD_BITS: u32 = 8;

    /// Packs an id; bits that do not fit are cut.
    pub const fn new(worker: u16, shard: u8, sequence: u64) -> Self {
        let worker = (worker % Self::MAX_WORKERS) as u64;
        let sequence = sequence & ((1 << Self::SEQUENCE_BITS) - 1);
        Self(
            worker << (Self::SEQUENCE_BITS + Self::SHARD_BITS)
                | (shard as u64) << Self::SEQUENCE_BITS
                | sequence,
        )
    }

    /// Entry worker that made the id.
    pub const fn worker(self) -> u16 {
        (self.0 >> (Self::SEQUENCE_BITS + Self::SHARD_BITS)) as u16
    }

    /// I/O shard of that worker.
    pub const fn shard(self) -> u8 {
        (self.0 >> Self::SEQUENCE_BITS) as u8
    }

    /// Detokenizer, of so many, that makes its text. The Python scheduler counts in the same way.
    pub const fn detokenizer(self, detokenizers: usize) -> usize {
        (self.0 % detokenizers as u64) as usize
    }

    /// Number within the shard.
    pub const fn sequence(self) -> u64 {
        self.0 & ((1 << Self::SEQUENCE_BITS) - 1)
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "RequestId({self})")
    }
}

/// How tokens are chosen. All fields are validated by the entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 is greedy: the lowest id among the largest logits.
    pub temperature: f64,
    pub top_p: f64,
    /// 0 is off.
    pub top_k: u32,
    pub min_p: f64,
    /// Absent: the scheduler draws one.
    pub seed: Option<u64>,
    /// 0 generates nothing; it is for requests that want `prompt_logprobs` alone.
    pub max_tokens: u32,
    pub min_tokens: u32,
    pub ignore_eos: bool,
    pub stop_token_ids: Vec<u32>,
    pub presence_penalty: f64,
    pub frequency_penalty: f64,
    /// 1 is off.
    pub repetition_penalty: f64,
    pub logit_bias: Vec<(u32, f64)>,
    /// Nothing but these may be generated; absent: every token may.
    pub allowed_token_ids: Option<Column<u32>>,
    /// Sequences of tokens, none empty, that are never generated: the last token of each is banned where those before
    /// it end what there is so far, prompt included.
    pub bad_words: Vec<Column<u32>>,
    /// Report the log probability of every generated token, and of so many of the likeliest at its place.
    pub logprobs: Option<u32>,
    /// The same for every prompt token but the first.
    pub prompt_logprobs: Option<u32>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: None,
            max_tokens: 16,
            min_tokens: 0,
            ignore_eos: false,
            stop_token_ids: Vec::new(),
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            allowed_token_ids: None,
            bad_words: Vec::new(),
            logprobs: None,
            prompt_logprobs: None,
        }
    }
}

/// What the detokenizer does with a request's tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Output {
    /// Stop strings; the earliest end in the text wins.
    pub stop: Vec<String>,
    /// Keep the stop string, or the stop token's text, in the answer.
    pub include_stop: bool,
    pub skip_special_tokens: bool,
    /// Stop strings are not looked for in the first so many tokens.
    pub min_tokens: u32,
    /// Report the ids of generated tokens; requests with log probabilities get them anyway.
    pub token_ids: bool,
}

impl Default for Output {
    fn default() -> Self {
        Self {
            stop: Vec::new(),
            include_stop: false,
            skip_special_tokens: true,
            min_tokens: 0,
            token_ids: false,
        }
    }
}

/// One generation: a prompt and how to continue it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    pub id: RequestId,
    /// Prompt token ids, at least one.
    pub prompt: Column<u32>,
    pub sampling: Sampling,
    pub output: Output,
    /// Lower runs first under the `priority` policy.
    pub priority: i32,
    /// Requests share cached prefixes only with requests of the same salt.
    pub cache_salt: String,
    /// Milliseconds after its arrival at the scheduler when the request ends with status 408, queued or running.
    pub deadline_ms: Option<u32>,
}

/// New requests. Costs one credit each.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Submit {
    pub tag: Tag<10>,
    pub requests: Vec<Request>,
}

/// Requests whose client has left. Needs no credit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Abort {
    pub tag: Tag<11>,
    pub ids: Vec<RequestId>,
}

/// Detokenizer to scheduler: a stop string ended these requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    pub tag: Tag<12>,
    pub ids: Vec<RequestId>,
}
