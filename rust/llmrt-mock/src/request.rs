//! A request as the engine keeps it, and the check of what came over the wire.

use std::sync::Arc;
use std::time::Instant;

use llmrt_link::PeerId;
use llmrt_wire::{Output, PromptLogprobs, Request, RequestId};

use crate::limits::Limits;
use crate::logprobs;
use crate::pattern::{Pattern, Script, mix};

/// An admitted request. Only the first fields are touched in every step.
#[derive(Debug)]
pub(crate) struct Row {
    pub id: RequestId,
    /// Detokenizer that gets its tokens.
    pub lane: usize,
    /// Tokens of answer so far.
    pub generated: u32,
    /// Tokens with which it ends, whatever the last one is.
    pub max_tokens: u32,
    /// Tokens after which it ends by itself.
    pub natural_end: u32,
    pub min_tokens: u32,
    /// Tokens that end it, none of them before `min_tokens`.
    pub stops: Vec<u32>,
    /// See [`llmrt_wire::Sampling::logprobs`].
    pub logprobs: Option<u32>,
    /// Told with its first token.
    pub prompt_logprobs: Option<Box<PromptLogprobs>>,
    pub script: Script,
    pub prompt_tokens: u32,
    pub owner: PeerId,
    pub arrived: Instant,
    pub admitted: Instant,
}

/// A request that waits, and what the detokenizer must be told when it is opened.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub row: Row,
    pub prompt_tail: Vec<u32>,
    pub output: Output,
}

/// Most of the likeliest tokens that are told beside each.
const MAX_LOGPROBS: u32 = 20;

/// Why a request can never run; the text is meant for its client. The entry has checked all this before, but what it
/// sends is not trusted.
pub(crate) fn check(request: &Request, limits: &Limits) -> Result<(), String> {
    let prompt = request.prompt.as_slice();
    if prompt.is_empty() {
        return Err("the prompt is empty".to_owned());
    }
    if prompt.len() >= limits.max_model_len as usize {
        return Err(format!(
            "the prompt has {} tokens and at least one of answer is needed, but the longest sequence that this server \
             can hold is {} tokens",
            prompt.len(),
            limits.max_model_len
        ));
    }
    let mut named = prompt.iter().chain(&request.sampling.stop_token_ids);
    if named.any(|&token| token >= limits.vocab_size) {
        return Err(format!(
            "token ids must be below the vocabulary size, {}",
            limits.vocab_size
        ));
    }
    let sampling = &request.sampling;
    if sampling.logprobs.max(sampling.prompt_logprobs) > Some(MAX_LOGPROBS) {
        return Err(format!(
            "logprobs and prompt_logprobs must be at most {MAX_LOGPROBS}"
        ));
    }
    match sampling.max_tokens {
        0 if sampling.prompt_logprobs.is_none() => Err("max_tokens must be at least 1".to_owned()),
        _ => Ok(()),
    }
}

/// Makes a checked request schedulable. `draw` is the seed of one that has none.
pub(crate) fn accept(
    request: Request,
    limits: &Limits,
    pattern: &Pattern,
    draw: u64,
    owner: PeerId,
    now: Instant,
) -> Waiting {
    let sampling = request.sampling;
    let prompt = request.prompt.0;
    let (script, length) = script(pattern, &prompt, sampling.seed.unwrap_or(draw), limits);
    let natural_end = if length == 0 || sampling.ignore_eos || limits.eos_token_ids.is_empty() {
        u32::MAX
    } else {
        length.max(sampling.min_tokens)
    };
    let mut stops = sampling.stop_token_ids;
    if !sampling.ignore_eos {
        stops.extend_from_slice(&limits.eos_token_ids);
    }
    let prompt_tokens = prompt.len() as u32;
    let row = Row {
        id: request.id,
        lane: request.id.detokenizer(limits.detokenizers),
        generated: 0,
        max_tokens: sampling
            .max_tokens
            .min(limits.max_model_len - prompt_tokens),
        natural_end,
        min_tokens: sampling.min_tokens,
        stops,
        logprobs: sampling.logprobs,
        prompt_logprobs: sampling
            .prompt_logprobs
            .map(|top| Box::new(logprobs::of_prompt(&prompt, top, limits.vocab_size))),
        script,
        prompt_tokens,
        owner,
        arrived: now,
        admitted: now,
    };
    Waiting {
        row,
        prompt_tail: prompt[prompt.len().saturating_sub(PROMPT_TAIL)..].to_vec(),
        output: request.output,
    }
}

/// Prompt tokens that the detokenizer is told, at most.
const PROMPT_TAIL: usize = 16;

/// The tokens of an answer and how many there are before it ends by itself, 0 for no end.
fn script(pattern: &Pattern, prompt: &[u32], seed: u64, limits: &Limits) -> (Script, u32) {
    let script = match pattern {
        Pattern::Tokens { tokens } => Script::Tokens(tokens.clone()),
        Pattern::Count => Script::Count,
        Pattern::Random { .. } => Script::Random(mix(seed)),
        Pattern::Echo => {
            // A chat prompt is full of ends, none of which is meant as one here.
            let told = prompt
                .iter()
                .filter(|token| !limits.eos_token_ids.contains(token));
            let mut told: Arc<[u32]> = told.copied().collect();
            if told.is_empty() {
                told = prompt.into();
            }
            let length = told.len() as u32;
            return (Script::Tokens(told), length);
        }
    };
    (script, limits.answer_tokens)
}

impl Row {
    /// The next token.
    pub(crate) fn next(&self, limits: &Limits, may_end: bool) -> u32 {
        if self.generated >= self.natural_end
            && let Some(&end) = limits.eos_token_ids.first()
        {
            return end;
        }
        let token = self.script.token(self.generated, limits.vocab_size);
        let early = self.generated < self.min_tokens && self.stops.contains(&token);
        if early || (!may_end && limits.eos_token_ids.contains(&token)) {
            return self.other(token, limits, early);
        }
        token
    }

    /// The next higher id that ends nothing; `token` itself when there is none.
    fn other(&self, token: u32, limits: &Limits, early: bool) -> u32 {
        let ends =
            |id: &u32| limits.eos_token_ids.contains(id) || (early && self.stops.contains(id));
        let after = (token + 1..limits.vocab_size).chain(0..token);
        after.into_iter().find(|id| !ends(id)).unwrap_or(token)
    }
}
