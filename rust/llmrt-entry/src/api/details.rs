//! How many answers a request has, and what it is told of them beside their text.

use super::error::ApiError;
use super::field;
use super::json::Json;
use super::{Endpoint, Limits};

/// Most alternatives that are told for a token.
pub const MAX_LOGPROBS: i64 = 20;

/// What comes with the text of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Details {
    /// Answers to each prompt.
    pub n: u32,
    pub(super) best_of: Option<u32>,
    /// Tell each token's logprob, and those of so many likeliest ones.
    pub logprobs: Option<u32>,
    pub(super) top_logprobs: Option<u32>,
    /// The same for the prompt's tokens.
    pub prompt_logprobs: Option<u32>,
    /// Begin each answer with its prompt.
    pub echo: bool,
    /// Tell the ids of the prompt's and the answer's tokens.
    pub token_ids: bool,
    /// Name tokens by their ids where logprobs are told.
    pub tokens_as_ids: bool,
}

impl Default for Details {
    fn default() -> Self {
        Self {
            n: 1,
            best_of: None,
            logprobs: None,
            top_logprobs: None,
            prompt_logprobs: None,
            echo: false,
            token_ids: false,
            tokens_as_ids: false,
        }
    }
}

impl Details {
    /// Takes the field `name` when it is one of these; hands any other back.
    ///
    /// # Errors
    /// 400 when the value has the wrong type or lies outside its range.
    pub fn take<'a>(
        &mut self,
        endpoint: Endpoint,
        name: &str,
        value: Json<'a>,
        limits: &Limits,
    ) -> Result<Option<Json<'a>>, ApiError> {
        let at = &name;
        let chat = endpoint == Endpoint::Chat;
        let within = |value, least, most| -> Result<u32, ApiError> {
            Ok(field::integer(at, value, least..=most)? as u32)
        };
        let choices = i64::from(limits.max_choices);
        match name {
            "n" => self.n = within(&value, 1, choices)?,
            "best_of" => self.best_of = Some(within(&value, 1, choices)?),
            // A number for completions, a switch for chats; clients send false to either.
            "logprobs" if chat => self.logprobs = field::boolean(at, &value)?.then_some(0),
            "logprobs" if value == Json::Bool(false) => self.logprobs = None,
            "logprobs" => self.logprobs = Some(within(&value, 0, MAX_LOGPROBS)?),
            "top_logprobs" if chat => self.top_logprobs = Some(within(&value, 0, MAX_LOGPROBS)?),
            "prompt_logprobs" => self.prompt_logprobs = Some(within(&value, 0, MAX_LOGPROBS)?),
            "echo" if !chat => self.echo = field::boolean(at, &value)?,
            "return_token_ids" => self.token_ids = field::boolean(at, &value)?,
            "return_tokens_as_token_ids" => self.tokens_as_ids = field::boolean(at, &value)?,
            _ => return Ok(Some(value)),
        }
        Ok(None)
    }

    /// Checks the fields against each other; `greedy` is whether all answers would be the same.
    ///
    /// # Errors
    /// 400 when two of them contradict.
    pub fn check(&mut self, greedy: bool) -> Result<(), ApiError> {
        let n = self.n;
        if let Some(best_of) = self.best_of.filter(|best_of| *best_of != n) {
            let reason = format_args!(
                "is {best_of} while `n` is {n}; choosing among more answers than are returned is not supported"
            );
            return Err(field::invalid(&"best_of", reason).code("unsupported_parameter"));
        }
        if n > 1 && greedy {
            let reason = format_args!(
                "is {n}, but with `temperature` 0 every answer is the same: send 1, or a temperature above 0"
            );
            return Err(field::invalid(&"n", reason));
        }
        match (self.top_logprobs, self.logprobs) {
            (Some(top), Some(_)) => self.logprobs = Some(top),
            (Some(1..), None) => {
                return Err(field::invalid(&"top_logprobs", "needs `logprobs: true`"));
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether anything is told beside the text.
    pub fn tell(&self) -> bool {
        self.logprobs.is_some() || self.prompt_logprobs.is_some() || self.echo || self.token_ids
    }

    /// What is asked of the core for the prompt's tokens: an echo tells them with the answer's.
    pub fn of_prompt(&self) -> Option<u32> {
        let echoed = self.logprobs.filter(|_| self.echo);
        self.prompt_logprobs.max(echoed)
    }
}

/// The seed of the choice with this number among the answers to one prompt: that of a request for one answer for the
/// first, and as good as drawn for the others.
pub fn seed_of(seed: u64, choice: u32) -> u64 {
    if choice == 0 {
        return seed;
    }
    // SplitMix64: a bijection of the seed for every choice.
    let mut mixed = seed.wrapping_add(u64::from(choice).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::seed_of;

    #[test]
    fn the_first_choice_has_the_requests_seed_and_no_two_the_same() {
        for seed in [0, 1, 42, u64::MAX] {
            assert_eq!(seed_of(seed, 0), seed);
            let seeds: HashSet<u64> = (0..1000).map(|choice| seed_of(seed, choice)).collect();
            assert_eq!(seeds.len(), 1000);
        }
    }
}
