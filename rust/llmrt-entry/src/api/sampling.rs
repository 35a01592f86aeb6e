//! How to continue: sampling fields, their ranges and their defaults.

use std::borrow::Cow;

use llmrt_wire::{Output, Sampling};
use serde::Deserialize;

use super::error::{ApiError, quote};
use super::field;
use super::json::{Json, parse_object};
use super::{Endpoint, Limits};

/// Most stop strings of a request.
pub const MAX_STOP: usize = 4;
/// Longest stop string, bytes: text of this length may be held back while it could still become one.
pub const MAX_STOP_BYTES: usize = 1024;
/// Most stop token ids of a request.
pub const MAX_STOP_TOKEN_IDS: usize = 256;
/// Most entries of `logit_bias`.
pub const MAX_LOGIT_BIAS: usize = 1024;
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
            "max_tokens" => self.max_tokens = Some(size(field::integer(at, &value, 1..=i64::MAX)?)),
            "max_completion_tokens" => {
                self.max_completion_tokens = Some(size(field::integer(at, &value, 1..=i64::MAX)?));
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
            "stop" => output.stop = stop(value)?,
            "include_stop_str_in_output" => output.include_stop = field::boolean(at, &value)?,
            "skip_special_tokens" => output.skip_special_tokens = field::boolean(at, &value)?,
            _ => return Ok(Some(value)),
        }
        Ok(None)
    }

    /// Checks the fields against each other, after the last was taken.
    ///
    /// # Errors
    /// 400 when two of them contradict.
    pub fn check(&mut self) -> Result<(), ApiError> {
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

fn stop(value: Json) -> Result<Vec<String>, ApiError> {
    match value {
        Json::String(text) => Ok(vec![stop_string(&"stop", text)?]),
        Json::Array(_) => {
            let items = field::array(&"stop", value, MAX_STOP)?;
            let strings = items.into_iter().enumerate().map(|(index, item)| {
                let path = format!("stop[{index}]");
                stop_string(&path, field::string(&path, item)?)
            });
            strings.collect()
        }
        other => Err(field::expected(
            &"stop",
            &"a string or an array of strings",
            &other,
        )),
    }
}

fn stop_string(path: &dyn std::fmt::Display, text: Cow<str>) -> Result<String, ApiError> {
    match text.len() {
        0 => Err(field::invalid(
            path,
            "is empty; a stop string needs at least one character",
        )),
        1..=MAX_STOP_BYTES => Ok(text.into_owned()),
        size => Err(field::invalid(
            path,
            format_args!("has {size} bytes; at most {MAX_STOP_BYTES} are allowed"),
        )),
    }
}

fn logit_bias(value: Json, vocab_size: u32) -> Result<Vec<(u32, f64)>, ApiError> {
    let members = field::object(&"logit_bias", value)?;
    if members.len() > MAX_LOGIT_BIAS {
        let reason = format_args!(
            "has {} entries; at most {MAX_LOGIT_BIAS} are allowed",
            members.len()
        );
        return Err(field::invalid(&"logit_bias", reason));
    }
    let entry = |(key, bias): (Cow<str>, Json)| {
        let Some(id) = token_key(&key).filter(|id| *id < vocab_size) else {
            let key = quote(&key);
            let reason = format_args!("has the key {key}; keys are token ids below {vocab_size}");
            return Err(field::invalid(&"logit_bias", reason));
        };
        let bias = field::float(
            &format_args!("logit_bias.{id}"),
            &bias,
            "between -100 and 100",
            |bias| (-100.0..=100.0).contains(&bias),
        )?;
        Ok((id, bias))
    };
    members.into_iter().map(entry).collect()
}

/// A token id in its one decimal spelling; another spelling could name an id twice.
fn token_key(key: &str) -> Option<u32> {
    let plain =
        key.bytes().all(|byte| byte.is_ascii_digit()) && (key == "0" || !key.starts_with('0'));
    key.parse().ok().filter(|_| plain)
}

/// Checks sampling fields by themselves: a JSON object of them, without a model at hand that would bound token ids.
///
/// # Errors
/// 400 that names the field at fault, also for one that is not about sampling.
pub fn check_sampling(fields: &[u8]) -> Result<(), ApiError> {
    let limits = Limits {
        max_model_len: u32::MAX,
        vocab_size: u32::MAX,
        defaults: Defaults::default(),
    };
    let mut generation = Generation::new(Endpoint::Chat, &limits.defaults);
    for (name, value) in parse_object(fields)? {
        if value != Json::Null && generation.take(&name, value, &limits)?.is_some() {
            return Err(field::invalid(&name, "is not a sampling field"));
        }
    }
    generation.check()
}
