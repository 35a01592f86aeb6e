//! Errors, classified once and rendered in OpenAI's form.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::Serialize;

/// Longest message of an error, bytes; longer ones are cut.
pub const MAX_MESSAGE: usize = 512;
/// Most characters of the client's own words that an error repeats.
pub const MAX_QUOTE: usize = 64;
/// When a client should come back that met a shortage: queues move and a core starts within about that.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// What went wrong, as far as a client can react to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// 400: the request cannot be answered as it is.
    Invalid,
    /// 401: no key, or a wrong one.
    Authentication,
    /// 403: the key does not open this route.
    Permission,
    /// 404: no such route or model.
    NotFound,
    /// 405: the route has no such method.
    MethodNotAllowed,
    /// 408: the deadline passed.
    Deadline,
    /// 413: the body is too big.
    TooLarge,
    /// 421: the request is for another host.
    Misdirected,
    /// 429: the queue or a quota is full.
    Overloaded,
    /// 500: a fault of the server.
    Internal,
    /// 503: starting, draining, or without a core.
    Unavailable,
}

impl ErrorKind {
    /// Every kind.
    pub const ALL: &[Self] = &[
        Self::Invalid,
        Self::Authentication,
        Self::Permission,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::Deadline,
        Self::TooLarge,
        Self::Misdirected,
        Self::Overloaded,
        Self::Internal,
        Self::Unavailable,
    ];

    /// What it means, for the documentation.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Invalid => "The request cannot be answered as it is.",
            Self::Authentication => "No key, or a wrong one.",
            Self::Permission => "The key does not open this route.",
            Self::NotFound => "No such route or model.",
            Self::MethodNotAllowed => "The route has no such method.",
            Self::Deadline => "The deadline passed.",
            Self::TooLarge => "The body is too big.",
            Self::Misdirected => "The request is for another host.",
            Self::Overloaded => "The queue or a quota is full.",
            Self::Internal => "A fault of the server.",
            Self::Unavailable => "Starting, draining, or without a core.",
        }
    }

    /// HTTP status.
    pub const fn status(self) -> StatusCode {
        match self {
            Self::Invalid => StatusCode::BAD_REQUEST,
            Self::Authentication => StatusCode::UNAUTHORIZED,
            Self::Permission => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::Deadline => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Misdirected => StatusCode::MISDIRECTED_REQUEST,
            Self::Overloaded => StatusCode::TOO_MANY_REQUESTS,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// `type` of the error body.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Invalid
            | Self::NotFound
            | Self::MethodNotAllowed
            | Self::Misdirected
            | Self::TooLarge => "invalid_request_error",
            Self::Authentication => "authentication_error",
            Self::Permission => "permission_error",
            Self::Deadline => "timeout_error",
            Self::Overloaded => "rate_limit_error",
            Self::Internal => "server_error",
            Self::Unavailable => "service_unavailable_error",
        }
    }

    /// `code` of the error body where the error itself names none.
    const fn code(self) -> Option<&'static str> {
        match self {
            Self::Authentication => Some("invalid_api_key"),
            Self::Deadline => Some("deadline_exceeded"),
            Self::TooLarge => Some("body_too_large"),
            Self::Misdirected => Some("host_not_allowed"),
            Self::Overloaded => Some("rate_limit_exceeded"),
            _ => None,
        }
    }
}

/// An answer that is an error.
///
/// Its message is short and free of control characters, whatever it was made from.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    kind: ErrorKind,
    message: String,
    param: Option<Cow<'static, str>>,
    code: Option<&'static str>,
    retry_after: Option<Duration>,
}

impl ApiError {
    /// An error of `kind`; [`Self::param`], [`Self::code`] and [`Self::retry_after`] add to it.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = clean(message.into());
        Self {
            kind,
            message,
            param: None,
            code: kind.code(),
            retry_after: None,
        }
    }

    /// 400.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// 404 for a model that is not served.
    pub fn model_not_found(model: &str) -> Self {
        let message = format!(
            "The model {} does not exist; GET /v1/models lists those served.",
            quote(model)
        );
        Self::new(ErrorKind::NotFound, message)
            .param("model")
            .code("model_not_found")
    }

    /// 404 for a route that does not exist.
    pub fn route_not_found(method: &str, path: &str) -> Self {
        let route = quote(&format!("{method} {path}"));
        Self::new(ErrorKind::NotFound, format!("There is no route {route}."))
            .code("route_not_found")
    }

    /// 429: try again soon.
    pub fn overloaded(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Overloaded, message).retry_after(RETRY)
    }

    /// 500. The message must not come from inside the server; log the cause instead.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// 503: try again soon.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message).retry_after(RETRY)
    }

    /// The error behind [`llmrt_wire::Outcome::status`]; a status without a kind of its own is a 500.
    pub fn from_status(status: u16, message: &str) -> Self {
        match status {
            400 => Self::invalid(message),
            404 => Self::new(ErrorKind::NotFound, message),
            408 => Self::new(ErrorKind::Deadline, message),
            413 => Self::new(ErrorKind::TooLarge, message),
            429 => Self::overloaded(message),
            503 => Self::unavailable(message),
            _ => Self::internal(message),
        }
    }

    /// Names the request field at fault, as in `messages[2].content`.
    pub fn param(mut self, param: impl Into<Cow<'static, str>>) -> Self {
        self.param = Some(match param.into() {
            Cow::Borrowed(name) => Cow::Borrowed(name),
            Cow::Owned(path) => Cow::Owned(clean(path)),
        });
        self
    }

    /// Sets the machine-readable code.
    pub fn code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// Sets how long a client should wait before it tries again.
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// HTTP status.
    pub fn status(&self) -> StatusCode {
        self.kind.status()
    }

    /// The message, for logs.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The request field at fault.
    pub fn field(&self) -> Option<&str> {
        self.param.as_deref()
    }

    /// How long a client should wait before it tries again.
    pub fn wait(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Adds `content-type`, to a 401 the challenge that RFC 9110 (section 15.5.2) asks for and, where there is
    /// something to wait for, `retry-after` and `retry-after-ms`.
    pub fn write_headers(&self, headers: &mut HeaderMap) {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.kind == ErrorKind::Authentication {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(wait) = self.retry_after {
            let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            headers.insert(RETRY_AFTER, HeaderValue::from(millis.div_ceil(1000)));
            headers.insert(RETRY_AFTER_MS, HeaderValue::from(millis));
        }
    }

    /// Body of the response: `{"error": {"message", "type", "param", "code"}}`.
    pub fn body(&self) -> Bytes {
        Bytes::from(self.json())
    }

    /// Appends the event that tells a stream's client of the error.
    ///
    /// It is an unnamed event: clients look for `error` in its data, and some skip named events.
    pub fn write_event(&self, out: &mut BytesMut) {
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(&self.json());
        out.extend_from_slice(b"\n\n");
    }

    fn json(&self) -> Vec<u8> {
        #[derive(Serialize)]
        struct Body<'a> {
            error: Inner<'a>,
        }
        #[derive(Serialize)]
        struct Inner<'a> {
            message: &'a str,
            r#type: &'static str,
            param: Option<&'a str>,
            code: Option<&'static str>,
        }
        let error = Inner {
            message: &self.message,
            r#type: self.kind.name(),
            param: self.param.as_deref(),
            code: self.code,
        };
        // Strings into a Vec: nothing here can fail.
        serde_json::to_vec(&Body { error }).unwrap_or_default()
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: {}", self.status().as_u16(), self.message)
    }
}

impl std::error::Error for ApiError {}

/// The client's own words, short and in quotes, for a message.
pub fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len().min(MAX_QUOTE) + 8);
    quoted.push('`');
    let mut chars = text.chars();
    quoted.extend(chars.by_ref().take(MAX_QUOTE));
    if chars.next().is_some() {
        quoted.push_str("...");
    }
    quoted.push('`');
    quoted
}

/// Replaces control characters and cuts to [`MAX_MESSAGE`].
fn clean(mut text: String) -> String {
    if text.len() > MAX_MESSAGE {
        let mut end = MAX_MESSAGE - 3;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push_str("...");
    }
    if text.contains(char::is_control) {
        text = text.replace(char::is_control, " ");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(raw: &[u8]) -> serde_json::Value {
        serde_json::from_slice(raw).unwrap()
    }

    #[test]
    fn body_has_all_four_members() {
        let error = ApiError::invalid("no").param("n").code("bad");
        let expected =
            r#"{"error":{"message":"no","type":"invalid_request_error","param":"n","code":"bad"}}"#;
        assert_eq!(error.body(), expected);
        let bare = parsed(&ApiError::internal("oops").body());
        assert!(bare["error"]["param"].is_null() && bare["error"]["code"].is_null());
        assert_eq!(bare["error"].as_object().unwrap().len(), 4);
    }

    #[test]
    fn statuses_from_the_core_keep_their_kind() {
        for status in [400, 404, 408, 413, 429, 500, 503] {
            assert_eq!(ApiError::from_status(status, "x").status().as_u16(), status);
        }
        assert_eq!(ApiError::from_status(0, "x").kind(), ErrorKind::Internal);
        assert_eq!(ApiError::from_status(418, "x").kind(), ErrorKind::Internal);
    }

    #[test]
    fn retry_headers_round_up_to_seconds() {
        let mut headers = HeaderMap::new();
        ApiError::overloaded("full")
            .retry_after(Duration::from_millis(1200))
            .write_headers(&mut headers);
        assert_eq!(headers["retry-after"], "2");
        assert_eq!(headers["retry-after-ms"], "1200");
        let mut headers = HeaderMap::new();
        ApiError::invalid("no").write_headers(&mut headers);
        assert_eq!(headers.len(), 1);
    }

    #[test]
    fn a_shortage_says_when_to_come_back_and_a_401_what_it_takes() {
        for shortage in [ApiError::overloaded("full"), ApiError::unavailable("down")] {
            let mut headers = HeaderMap::new();
            shortage.write_headers(&mut headers);
            assert_eq!(headers["retry-after"], "1");
        }
        let mut headers = HeaderMap::new();
        ApiError::new(ErrorKind::Authentication, "who?").write_headers(&mut headers);
        assert_eq!(headers["www-authenticate"], "Bearer");
    }

    #[test]
    fn messages_are_bounded_and_clean() {
        let error = ApiError::invalid("\u{e9}\n\u{1b}".repeat(100_000)).param("p".repeat(100_000));
        assert!(error.message().len() <= MAX_MESSAGE);
        assert!(!error.message().contains(char::is_control));
        assert!(error.body().len() < 3 * MAX_MESSAGE);
        assert_eq!(quote(&"x".repeat(1000)).len(), MAX_QUOTE + 5);
    }

    #[test]
    fn the_event_of_a_stream_carries_a_truthy_error() {
        let mut out = BytesMut::new();
        ApiError::unavailable("draining\n\ndata: [DONE]").write_event(&mut out);
        let data = out
            .strip_prefix(b"data: ")
            .unwrap()
            .strip_suffix(b"\n\n")
            .unwrap();
        assert!(!data.contains(&b'\n'));
        assert!(parsed(data)["error"].is_object());
    }
}
