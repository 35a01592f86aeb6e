//! Chat templates: from a list of messages to the prompt a model was trained on.
//!
//! A model ships a Jinja template (`chat_template` in `tokenizer_config.json`, `tokenizer.chat_template` in a GGUF).
//! [`ChatTemplate`] compiles it once and renders conversations as Hugging Face `transformers.apply_chat_template`
//! does, byte for byte: same whitespace rules, same Python methods, same `tojson`, same way of printing values.
//!
//! A template is data that came with the model, so it runs with bounds: fuel in proportion to the conversation,
//! a cap on its output and a time limit ([`Limits`]). It can neither read files nor the environment.
//! The bounds do not see single operations on huge values (`[0] * 10**12`), nor the stack it takes to drop a tower
//! of lists that a template nests thousands deep. Conversations alone cannot cause either, templates can: serve those of
//! models you would also load, and never one that came with a request.

mod bounds;
mod content;
mod error;
mod options;
mod python;
mod source;
mod template;

pub use content::ContentFormat;
pub use error::ChatError;
pub use options::{Clock, Limits, LocalTime, RenderOptions, TemplateOptions};
pub use template::ChatTemplate;
