//! What can go wrong between a conversation and its prompt.

use std::fmt;
use std::time::Duration;

use minijinja::{Error, ErrorKind};

/// Why a template could not be loaded or a conversation not be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChatError {
    /// The template is broken: the model cannot be served for chat.
    #[error("the chat template does not compile: {0}")]
    Compile(String),
    /// The template refused the conversation with `raise_exception`; the message is the template's own.
    #[error("{0}")]
    Raised(String),
    /// The template failed on this conversation, for example because a message lacks a field it reads.
    #[error("the chat template cannot render these messages: {0}")]
    Render(String),
    /// The conversation made the template run for too many instructions.
    #[error("rendering these messages takes too many steps; send fewer or shorter messages")]
    OutOfFuel,
    /// The prompt, or the text written on the way to it, is larger than the configured cap.
    #[error("the rendered prompt is larger than {limit} bytes; send fewer or shorter messages")]
    TooLarge { limit: usize },
    /// Rendering took longer than the configured limit.
    #[error("rendering these messages takes longer than {limit:?}; send fewer or shorter messages")]
    OutOfTime { limit: Duration },
    /// A content part that is not text.
    #[error(
        "messages[{index}].content: parts of type '{kind}' are unsupported, only 'text' is supported"
    )]
    Unsupported { index: usize, kind: String },
    /// The messages or the options are not what a chat template can be given.
    #[error("{0}")]
    Invalid(String),
    /// The template engine itself failed: a bug, not the client's fault.
    #[error("the template engine failed while rendering these messages")]
    Engine,
}

impl ChatError {
    /// Whether the request is at fault (HTTP 400), as opposed to the template at load time or the engine.
    pub fn is_client_error(&self) -> bool {
        !matches!(self, ChatError::Compile(_) | ChatError::Engine)
    }
}

/// A bound that stopped a render.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bound {
    Output(usize),
    Time(Duration),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} exceeded", self)
    }
}

impl std::error::Error for Bound {}

/// The message a template gave to `raise_exception`, carried through the engine as an error source.
#[derive(Debug)]
pub(crate) struct Raised(pub String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// Longest message handed to a client, in characters: messages can repeat what the client sent.
const MAX_MESSAGE: usize = 500;

/// Names the cause of an engine error by walking its chain of sources.
pub(crate) fn classify(error: Error) -> ChatError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref::<Raised>() {
            return ChatError::Raised(capped(message));
        }
        if let Some(bound) = current.downcast_ref::<Bound>() {
            return match *bound {
                Bound::Output(limit) => ChatError::TooLarge { limit },
                Bound::Time(limit) => ChatError::OutOfTime { limit },
            };
        }
        if let Some(engine) = current.downcast_ref::<Error>()
            && engine.kind() == ErrorKind::OutOfFuel
        {
            return ChatError::OutOfFuel;
        }
        // An I/O error hides what it wraps from `source`.
        cause = match current
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::get_ref)
        {
            Some(inner) => Some(inner),
            None => current.source(),
        };
    }
    ChatError::Render(capped(&describe(&error)))
}

fn capped(message: &str) -> String {
    match message.char_indices().nth(MAX_MESSAGE) {
        Some((end, _)) => format!("{}...", &message[..end]),
        None => message.to_owned(),
    }
}

/// One line without the template's source: what failed and where.
pub(crate) fn describe(error: &Error) -> String {
    match (error.detail(), error.line()) {
        (Some(detail), Some(line)) => format!("{}: {detail} (line {line})", error.kind()),
        (Some(detail), None) => format!("{}: {detail}", error.kind()),
        (None, Some(line)) => format!("{} (line {line})", error.kind()),
        (None, None) => error.kind().to_string(),
    }
}
