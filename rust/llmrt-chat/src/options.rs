//! What a template is compiled with and what one render may ask.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

/// Local wall-clock time, as `strftime_now` prints it.
pub type LocalTime = jiff::civil::DateTime;

/// Where `strftime_now` gets its time from.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> LocalTime + Send + Sync>);

impl Clock {
    /// The system's local time.
    pub fn system() -> Self {
        Self(Arc::new(|| jiff::Zoned::now().datetime()))
    }

    /// A clock that stands still, for reproducible prompts.
    pub fn fixed(time: LocalTime) -> Self {
        Self(Arc::new(move || time))
    }

    pub(crate) fn now(&self) -> LocalTime {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// Bounds on one render.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Engine instructions any conversation may spend, however small.
    pub base_fuel: u64,
    /// Instructions added per JSON value in the messages.
    pub fuel_per_value: u64,
    /// Instructions added per byte of text in the messages.
    pub fuel_per_byte: u64,
    /// Largest prompt, in bytes.
    pub max_output_bytes: usize,
    /// Longest render, checked whenever the template prints something.
    pub max_time: Duration,
}

impl Default for Limits {
    /// Known templates spend about 100 instructions on a message; these bounds leave ten times that.
    fn default() -> Self {
        Self {
            base_fuel: 20_000,
            fuel_per_value: 1_000,
            fuel_per_byte: 4,
            max_output_bytes: 16 << 20,
            max_time: Duration::from_secs(2),
        }
    }
}

/// What a template is compiled with.
#[derive(Debug, Clone)]
pub struct TemplateOptions {
    /// Text of the beginning-of-sequence token; undefined in the template when `None`.
    pub bos_token: Option<String>,
    /// Text of the end-of-sequence token; undefined in the template when `None`.
    pub eos_token: Option<String>,
    /// Further special tokens by the name the template uses (`pad_token`, `unk_token`, ...).
    pub special_tokens: BTreeMap<String, String>,
    /// Bounds on every render.
    pub limits: Limits,
    /// Time source of `strftime_now`.
    pub clock: Clock,
}

impl Default for TemplateOptions {
    fn default() -> Self {
        Self {
            bos_token: None,
            eos_token: None,
            special_tokens: BTreeMap::new(),
            limits: Limits::default(),
            clock: Clock::system(),
        }
    }
}

/// What one render may ask.
#[derive(Debug, Clone, Default)]
pub struct RenderOptions {
    /// End the prompt with the header of a new assistant message.
    pub add_generation_prompt: bool,
    /// Leave the last message open, so that the model continues it. Excludes `add_generation_prompt`.
    pub continue_final_message: bool,
    /// Further template variables (`chat_template_kwargs`); they win over special tokens.
    pub kwargs: Map<String, Value>,
}
