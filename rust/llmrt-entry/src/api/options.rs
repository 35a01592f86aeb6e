//! The fields that chat and completions share.

use super::details::Details;
use super::error::{ApiError, quote};
use super::field;
use super::json::Json;
use super::placing::Placing;
use super::prompting::Prompting;
use super::rules;
use super::sampling::Generation;
use super::{Endpoint, Limits};

/// Unknown field names that are kept for the log.
const MAX_UNKNOWN: usize = 16;

/// Whether and how the answer is streamed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streaming {
    pub stream: bool,
    /// A last chunk tells the usage.
    pub include_usage: bool,
    /// With [`Self::include_usage`]: every chunk tells the usage so far.
    pub continuous_usage: bool,
}

/// Everything about a generation request but its prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The model's name as the client wrote it.
    pub model: Option<String>,
    pub streaming: Streaming,
    pub generation: Generation,
    pub prompting: Prompting,
    pub details: Details,
    pub placing: Placing,
    /// Names that no rule knows, short and few, for a log line.
    pub unknown: Vec<String>,
    endpoint: Endpoint,
    stream_options: bool,
}

impl Options {
    /// The options of a request that has none.
    pub fn new(endpoint: Endpoint, limits: &Limits) -> Self {
        Self {
            model: None,
            streaming: Streaming::default(),
            generation: Generation::new(endpoint, &limits.defaults),
            prompting: Prompting::new(endpoint),
            details: Details::default(),
            placing: Placing::default(),
            unknown: Vec::new(),
            endpoint,
            stream_options: false,
        }
    }

    /// Takes any field that is not the prompt. `null` is a field left out.
    ///
    /// # Errors
    /// 400 when the value is wrong or asks for what llmrt does not do.
    pub fn take(&mut self, name: &str, value: Json, limits: &Limits) -> Result<(), ApiError> {
        if value == Json::Null {
            return Ok(());
        }
        match name {
            "model" => self.model = Some(field::string(&"model", value)?.into_owned()),
            "stream" => self.streaming.stream = field::boolean(&"stream", &value)?,
            "stream_options" => self.take_stream_options(value)?,
            _ => self.take_other(name, value, limits)?,
        }
        Ok(())
    }

    fn take_other(&mut self, name: &str, value: Json, limits: &Limits) -> Result<(), ApiError> {
        let endpoint = self.endpoint;
        let Some(value) = self.generation.take(name, value, limits)? else {
            return Ok(());
        };
        let Some(value) = self.prompting.take(endpoint, name, value, limits)? else {
            return Ok(());
        };
        let Some(value) = self.details.take(endpoint, name, value, limits)? else {
            return Ok(());
        };
        let Some(value) = self.placing.take(name, value, limits)? else {
            return Ok(());
        };
        if !rules::check(endpoint, name, &value)? {
            self.note_unknown(name);
        }
        Ok(())
    }

    /// Checks the fields against each other, after the last was taken.
    ///
    /// # Errors
    /// 400 when two of them contradict.
    pub fn check(&mut self) -> Result<(), ApiError> {
        if self.stream_options && !self.streaming.stream {
            return Err(field::invalid(
                &"stream_options",
                "is only allowed with `stream: true`",
            ));
        }
        self.prompting.check()?;
        self.generation.check(self.details.echo)?;
        self.details.check(self.generation.is_greedy())
    }

    fn take_stream_options(&mut self, value: Json) -> Result<(), ApiError> {
        self.stream_options = true;
        for (name, value) in field::object(&"stream_options", value)? {
            let path = format!("stream_options.{name}");
            match (name.as_ref(), value) {
                (_, Json::Null) => {}
                ("include_usage", value) => {
                    self.streaming.include_usage = field::boolean(&path, &value)?
                }
                ("continuous_usage_stats", value) => {
                    self.streaming.continuous_usage = field::boolean(&path, &value)?
                }
                // Padding against traffic analysis; the text is the same without.
                ("include_obfuscation", value) => drop(field::boolean(&path, &value)?),
                _ => self.note_unknown(&path),
            }
        }
        Ok(())
    }

    fn note_unknown(&mut self, name: &str) {
        if self.unknown.len() < MAX_UNKNOWN {
            self.unknown.push(quote(name));
        }
    }
}
