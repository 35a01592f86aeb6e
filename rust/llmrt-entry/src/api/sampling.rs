//! How to continue: sampling fields, their ranges and their defaults.

use llmrt_wire::{Output, Sampling};
use serde::Deserialize;

use super::details::Details;
use super::error::ApiError;
use super::field;
use super::json::{Json, parse_object};
use super::lists::{bad_words, logit_bias, stop};
use super::{Endpoint, Limits};

/// Most stop token ids of a request.
pub const MAX_STOP_TOKEN_IDS: usize = 256;
/// Least and greatest `repetition_penalty`; what samplers compute with it stays finite between them.
pub const REPETITION_PENALTY: (f64, f64) = (1e-6, 1e6);
/// Tokens that `/v1/completions` answers with when the request does not say.
pub const COMPLETION_TOKENS: u32 = 16;

/// What a model asks for where a request is silent, as its `generation_config.json` has it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Defaults {
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<u32>,
    pub min_p: Option<f64>,
    pub repetition_penalty: Option<f64>,
}

impl Defaults {
    /// Whether the model's penalty is one that a request might ask for.
    pub fn are_sound(&self) -> bool {
        let (low, high) = REPETITION_PENALTY;
        self.repetition_penalty
            .is_none_or(|penalty| (low..=high).contains(&penalty))
    }
}

/// A checked wish for text, not yet cut to the room that its prompt leaves.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    endpoint: Endpoint,
    sampling: Sampling,
    output: Output,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    bad_words: Vec<String>,
}

impl Generation {
    /// The wish of a request that has no sampling field.
    pub fn new(endpoint: Endpoint, defaults: &Defaults) -> Self {
        let base = Sampling::default();
        let sampling = Sampling {
            temperature: defaults.temperature.unwrap_or(base.temperature),
            top_p: defaults.top_p.unwrap_or(base.top_p),
            top_k: defaults.top_k.unwrap_or(base.top_k),
            min_p: defaults.min_p.unwrap_or(base.min_p),
            repetition_penalty: defaults
                .repetition_penalty
                .unwrap_or(base.repetition_penalty),
            ..base
        };
        Self {
            endpoint,
            sampling,
            output: Output::default(),
            max_tokens: None,
            max_completion_tokens: None,
            bad_words: Vec::new(),
        }
    }

    /// Takes the field `name` when it is about sampling; hands any other back.
    ///
    /// # Errors
    /// 400 when the value has the wrong type or lies outside its range.
    pub fn take<'a>(
        &mut self,
        name: &str,
        value: Json<'a>,
        limits: &Limits,
    ) -> Result<Option<Json<'a>>, ApiError> {
        let at = &name;
        let (sampling, output) = (&mut self.sampling, &mut self.output);
        match name {
            "temperature" => sampling.temperature = within(at, &value, 0.0, 2.0)?,
            "top_p" => {
                let wanted = "above 0 and at most 1";
                sampling.top_p = field::float(at, &value, wanted, |p| p > 0.0 && p <= 1.0)?;
            }
            "top_k" => sampling.top_k = size(field::integer(at, &value, -1..=i64::MAX)?),
            "min_p" => sampling.min_p = within(at, &value, 0.0, 1.0)?,
            // The bits stay as they are: every one of 2^64 seeds is its own.
            "seed" => sampling.seed = Some(field::integer(at, &value, i64::MIN..=i64::MAX)? as u64),
            // Whether 0 is enough is known when all fields are.
            "max_tokens" => self.max_tokens = Some(size(field::integer(at, &value, 0..=i64::MAX)?)),
            "max_completion_tokens" => {
                self.max_completion_tokens = Some(size(field::integer(at, &value, 0..=i64::MAX)?));
            }
            "min_tokens" => {
                sampling.min_tokens =
                    size(field::integer(at, &value, 0..=limits.max_model_len.into())?);
            }
            "ignore_eos" => sampling.ignore_eos = field::boolean(at, &value)?,
            "presence_penalty" => sampling.presence_penalty = within(at, &value, -2.0, 2.0)?,
            "frequency_penalty" => sampling.frequency_penalty = within(at, &value, -2.0, 2.0)?,
            "repetition_penalty" => sampling.repetition_penalty = repetition_penalty(at, &value)?,
            "logit_bias" => sampling.logit_bias = logit_bias(value, limits.vocab_size)?,
            "stop_token_ids" => {
                let vocab = limits.vocab_size;
                sampling.stop_token_ids = field::token_ids(at, value, vocab, MAX_STOP_TOKEN_IDS)?;
            }
            "allowed_token_ids" => {
                let (vocab, path) = (limits.vocab_size, name);
                let allowed = field::token_ids(at, value, vocab, vocab as usize)?;
                if allowed.is_empty() {
                    return Err(field::invalid(&path, "is empty, which allows no token"));
                }
                sampling.allowed_token_ids = Some(allowed.into());
            }
            "bad_words" => self.bad_words = bad_words(value)?,
            "stop" => output.stop = stop(value)?,
            "include_stop_str_in_output" => output.include_stop = field::boolean(at, &value)?,
            "skip_special_tokens" => output.skip_special_tokens = field::boolean(at, &value)?,
            _ => return Ok(Some(value)),
        }
        Ok(None)
    }

    /// Checks the fields against each other, after the last was taken; `echo` is whether an answer of no tokens has
    /// something to say.
    ///
    /// # Errors
    /// 400 when two of them contradict.
    pub fn check(&mut self, echo: bool) -> Result<(), ApiError> {
        for (name, given) in [
            ("max_tokens", self.max_tokens),
            ("max_completion_tokens", self.max_completion_tokens),
        ] {
            if given == Some(0) && !echo {
                let reason = "must be an integer of at least 1, not 0, unless `echo` is true";
                return Err(field::invalid(&name, reason));
            }
        }
        if let (Some(new), Some(old)) = (self.max_completion_tokens, self.max_tokens)
            && new != old
        {
            let reason = format_args!("is {new} while `max_tokens` is {old}: send one of them");
            return Err(field::invalid(&"max_completion_tokens", reason));
        }
        self.max_tokens = self.max_completion_tokens.or(self.max_tokens);
        if self.max_tokens.is_none() && self.endpoint == Endpoint::Completions {
            self.max_tokens = Some(COMPLETION_TOKENS);
        }
        self.output.min_tokens = self.sampling.min_tokens;
        self.check_min_tokens(self.max_tokens.unwrap_or(u32::MAX))
    }

    /// Whether each token is the likeliest one.
    pub fn is_greedy(&self) -> bool {
        self.sampling.temperature == 0.0
    }

    /// Most tokens of the answer, as far as the request says; known once [`Self::check`] has passed.
    pub fn max_tokens(&self) -> Option<u32> {
        self.max_tokens
    }

    /// Texts that the answer must not have, and that are still to be tokenized.
    pub fn bad_words(&self) -> &[String] {
        &self.bad_words
    }

    /// The token sequences that the bad words are.
    pub fn set_bad_words(&mut self, words: Vec<Vec<u32>>) {
        self.sampling.bad_words = words.into_iter().map(Into::into).collect();
    }

    /// Asks the core to report what `details` has it tell.
    pub fn report(&mut self, details: &Details) {
        self.sampling.logprobs = details.logprobs;
        self.sampling.prompt_logprobs = details.of_prompt();
        if self.max_tokens == Some(0) {
            // The core takes an empty answer only from who wants to know of the prompt.
            self.sampling.prompt_logprobs.get_or_insert(0);
        }
        self.output.token_ids = details.token_ids;
    }

    /// Whether special tokens have no text.
    pub fn skips_special_tokens(&self) -> bool {
        self.output.skip_special_tokens
    }

    /// Token ids that end the answer, for `stop_reason`.
    pub fn stop_token_ids(&self) -> &[u32] {
        &self.sampling.stop_token_ids
    }

    /// Cuts the wish to the room that a prompt of `prompt_tokens` leaves in the model's context.
    ///
    /// # Errors
    /// 400 for an empty prompt; with code `context_length_exceeded` for one that leaves no room.
    pub fn fit(
        mut self,
        prompt_tokens: usize,
        limits: &Limits,
    ) -> Result<(Sampling, Output), ApiError> {
        let prompt = self.endpoint.prompt_field();
        if prompt_tokens == 0 {
            return Err(field::invalid(
                &prompt,
                "has no tokens; there is nothing to continue",
            ));
        }
        let room = u32::try_from(prompt_tokens)
            .ok()
            .and_then(|used| limits.max_model_len.checked_sub(used));
        let Some(room) = room.filter(|room| *room > 0) else {
            return Err(context_exceeded(
                prompt,
                prompt_tokens,
                limits.max_model_len,
            ));
        };
        let max_tokens = self.max_tokens.unwrap_or(room).min(room);
        self.check_min_tokens(max_tokens)?;
        self.sampling.max_tokens = max_tokens;
        Ok((self.sampling, self.output))
    }

    fn check_min_tokens(&self, max_tokens: u32) -> Result<(), ApiError> {
        let min_tokens = self.sampling.min_tokens;
        if min_tokens <= max_tokens {
            return Ok(());
        }
        let reason =
            format_args!("is {min_tokens}, but the answer has at most {max_tokens} tokens");
        Err(field::invalid(&"min_tokens", reason))
    }
}

/// 400: a prompt of `prompt_tokens` leaves no room for an answer.
pub fn context_exceeded(param: &'static str, prompt_tokens: usize, max_model_len: u32) -> ApiError {
    ApiError::invalid(format!(
        "The maximum context length is {max_model_len} tokens, prompt and answer together; \
         the prompt alone has {prompt_tokens}. Shorten it."
    ))
    .param(param)
    .code("context_length_exceeded")
}

/// 400: a text of so many `bytes` has more tokens than the context, whichever they are.
pub fn text_exceeds_context(param: &'static str, bytes: usize, max_model_len: u32) -> ApiError {
    ApiError::invalid(format!(
        "The maximum context length is {max_model_len} tokens, prompt and answer together; \
         the prompt has {bytes} bytes, more than so many tokens can stand for. Shorten it."
    ))
    .param(param)
    .code("context_length_exceeded")
}

fn within(path: &&str, value: &Json, low: f64, high: f64) -> Result<f64, ApiError> {
    let wanted = format!("between {low} and {high}");
    field::float(path, value, &wanted, |number| {
        (low..=high).contains(&number)
    })
}

fn repetition_penalty(path: &&str, value: &Json) -> Result<f64, ApiError> {
    let (low, high) = REPETITION_PENALTY;
    let wanted = format!("between {low} and {high}");
    // The bounds hold for the number as it was sent: rounding would take the lower one out of its own range.
    let number = field::float(path, value, &wanted, |_| true)?;
    if (low..=high).contains(&number) {
        return Ok(number);
    }
    Err(field::expected(
        path,
        &format_args!("a number {wanted}"),
        value,
    ))
}

/// A count: negative ones are 0, those too big to matter are cut.
fn size(count: i64) -> u32 {
    u32::try_from(count.max(0)).unwrap_or(u32::MAX)
}

/// Checks sampling fields by themselves: a JSON object of them, without a model at hand that would bound token ids.
///
/// # Errors
/// 400 that names the field at fault, also for one that is not about sampling.
pub fn check_sampling(fields: &[u8]) -> Result<(), ApiError> {
    let limits = Limits {
        max_model_len: u32::MAX,
        vocab_size: u32::MAX,
        max_choices: u32::MAX,
        priorities: true,
        defaults: Defaults::default(),
    };
    let mut generation = Generation::new(Endpoint::Chat, &limits.defaults);
    let mut details = Details::default();
    for (name, value) in parse_object(fields)? {
        if value == Json::Null {
            continue;
        }
        let Some(value) = generation.take(&name, value, &limits)? else {
            continue;
        };
        // Counts of likeliest tokens, as completions have them.
        let endpoint = Endpoint::Completions;
        let taken = details.take(endpoint, &name, value, &limits)?.is_none();
        if !taken || matches!(&*name, "echo" | "best_of") || name.starts_with("return_") {
            return Err(field::invalid(&name, "is not a sampling field"));
        }
    }
    generation.check(false)?;
    details.check(generation.is_greedy())
}
