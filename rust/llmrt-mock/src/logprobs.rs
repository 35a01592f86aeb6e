//! Log probabilities of tokens that nobody computed: the token is the likeliest, those after it by id come next.

use llmrt_wire::{Logprobs, PromptLogprobs};

/// Log probability of the token that stands at a place among the likeliest.
fn logprob(place: u32) -> f32 {
    -0.25 - place as f32
}

/// What is told of one place in an answer or prompt.
struct Told {
    top_ids: Vec<u32>,
    top_logprobs: Vec<f32>,
}

fn told(token: u32, top: u32, vocab_size: u32) -> Told {
    let places = 0..top.min(vocab_size);
    Told {
        top_ids: places
            .clone()
            .map(|place| after(token, place, vocab_size))
            .collect(),
        top_logprobs: places.map(logprob).collect(),
    }
}

fn after(token: u32, place: u32, vocab_size: u32) -> u32 {
    ((u64::from(token) + u64::from(place)) % u64::from(vocab_size)) as u32
}

/// Adds the values of the one token of a row.
pub(crate) fn push(logprobs: &mut Logprobs, row: u32, token: u32, top: u32, vocab_size: u32) {
    let told = told(token, top, vocab_size);
    logprobs.rows.push(row);
    logprobs.top.push(told.top_ids.len() as u32);
    logprobs.chosen.push(logprob(0));
    logprobs.top_ids.extend(told.top_ids);
    logprobs.top_logprobs.extend(told.top_logprobs);
}

/// The values of a prompt; their row is still to be set.
pub(crate) fn of_prompt(prompt: &[u32], top: u32, vocab_size: u32) -> PromptLogprobs {
    let mut values = PromptLogprobs {
        top: top.min(vocab_size),
        ..PromptLogprobs::default()
    };
    for &token in prompt.iter().skip(1) {
        let told = told(token, top, vocab_size);
        values.chosen.push(logprob(0));
        values.top_ids.extend(told.top_ids);
        values.top_logprobs.extend(told.top_logprobs);
    }
    values
}
