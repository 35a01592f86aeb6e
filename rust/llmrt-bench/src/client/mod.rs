//! Connections to the server: a keep-alive pool of HTTP/1.1 connections, or HTTP/2 connections that share streams.

mod dial;
mod http1;
mod http2;
mod tls;

use std::rc::Rc;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue, USER_AGENT};
use http::{HeaderMap, Method, Request, StatusCode, Uri};

use crate::config::{BenchConfig, ConfigError, Target};
use crate::sse::error_message;

use dial::Dialer;

/// Bytes of an error body, or of a small JSON answer, that are read.
const MAX_SMALL_BODY: usize = 1 << 20;

/// Why a request failed: a kind to count by (a status code or a word) and what happened this time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub kind: String,
    pub message: String,
}

impl Fault {
    pub fn new(kind: &str, message: impl ToString) -> Self {
        Self {
            kind: kind.to_owned(),
            message: message.to_string(),
        }
    }

    /// The connection or stream ended before the answer did.
    fn lost(error: &dyn std::error::Error) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            source = cause.source();
        }
        Self::new("early_close", message)
    }
}

/// Sends requests to one server.
pub struct Client {
    target: Target,
    headers: HeaderMap,
    dialer: Rc<Dialer>,
    pool: Pool,
}

enum Pool {
    Http1(Rc<http1::Pool>),
    Http2(http2::Pool),
}

/// An answer whose body has not been read.
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Body,
}

/// Bytes of an answer. A body that is dropped before its end cancels the request.
pub enum Body {
    Http1(http1::Body),
    Http2(http2::Body),
}

impl Client {
    /// # Errors
    /// A header that HTTP does not allow, or a host that has no address, or that nobody vouches for.
    pub fn new(config: &BenchConfig) -> Result<Self, ConfigError> {
        let target = config.target()?;
        let dialer = Rc::new(Dialer::new(config, &target)?);
        let pool = if config.http2 {
            Pool::Http2(http2::Pool::new(
                dialer.clone(),
                config.streams_per_connection,
            ))
        } else {
            Pool::Http1(Rc::new(http1::Pool::new(dialer.clone())))
        };
        let headers = headers(config, &target)?;
        Ok(Self {
            target,
            headers,
            dialer,
            pool,
        })
    }

    /// Connections opened so far.
    pub fn connections_opened(&self) -> usize {
        self.dialer.opened()
    }

    /// The URI of a path below `/v1`, in the form that the protocol wants.
    ///
    /// # Errors
    /// A path that is no URI.
    pub fn uri(&self, path: &str) -> Result<Uri, ConfigError> {
        let Target {
            authority,
            prefix,
            secure,
            ..
        } = &self.target;
        let scheme = if *secure { "https" } else { "http" };
        let text = match self.pool {
            Pool::Http1(_) => format!("{prefix}{path}"),
            Pool::Http2(_) => format!("{scheme}://{authority}{prefix}{path}"),
        };
        text.parse()
            .map_err(|e| ConfigError(format!("{text}: {e}")))
    }

    /// Sends a request and waits for the head of its answer.
    ///
    /// # Errors
    /// `connect` or `early_close`.
    pub async fn send(&self, method: Method, uri: Uri, body: Bytes) -> Result<Reply, Fault> {
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = self.headers.clone();
        match &self.pool {
            Pool::Http1(pool) => pool.send(request).await,
            Pool::Http2(pool) => pool.send(request).await,
        }
    }

    /// Name of the first model that the server lists.
    ///
    /// # Errors
    /// The request failed or has another form.
    pub async fn first_model(&self) -> Result<String, Fault> {
        let uri = self.uri("/models").map_err(|e| Fault::new("connect", e))?;
        let mut reply = self.send(Method::GET, uri, Bytes::new()).await?;
        let body = reply.body.read_all().await?;
        if reply.status != StatusCode::OK {
            return Err(status_fault(reply.status, &body));
        }
        serde_json::from_slice::<serde_json::Value>(&body)
            .ok()
            .and_then(|models| Some(models["data"][0]["id"].as_str()?.to_owned()))
            .ok_or_else(|| Fault::new("garbage", "/v1/models lists no model"))
    }
}

impl Body {
    /// The next bytes, as they arrived; `None` at the end.
    ///
    /// # Errors
    /// `early_close`.
    pub async fn data(&mut self) -> Option<Result<Bytes, Fault>> {
        match self {
            Self::Http1(body) => body.data().await,
            Self::Http2(body) => body.data().await,
        }
    }

    /// The whole body, or its first mebibyte.
    ///
    /// # Errors
    /// `early_close`.
    pub async fn read_all(&mut self) -> Result<Vec<u8>, Fault> {
        let mut all = Vec::new();
        while let Some(bytes) = self.data().await {
            all.extend_from_slice(&bytes?);
            if all.len() > MAX_SMALL_BODY {
                break;
            }
        }
        Ok(all)
    }
}

/// The failure that an answer with an error status is.
pub fn status_fault(status: StatusCode, body: &[u8]) -> Fault {
    let message = error_message(body).unwrap_or_else(|| crate::sse::quote(body));
    Fault::new(
        status.as_str(),
        if message.is_empty() {
            status.to_string()
        } else {
            message
        },
    )
}

fn headers(config: &BenchConfig, target: &Target) -> Result<HeaderMap, ConfigError> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(
        USER_AGENT,
        HeaderValue::from_static(concat!("llmrt-bench/", env!("CARGO_PKG_VERSION"))),
    );
    if !config.http2 {
        headers.insert(HOST, value("host", &target.authority)?);
    }
    if let Some(key) = &config.api_key {
        headers.insert(AUTHORIZATION, value("API key", &format!("Bearer {key}"))?);
    }
    for (name, text) in &config.headers {
        let header = HeaderName::try_from(name.as_str())
            .map_err(|_| ConfigError(format!("header {name:?} is not a header name")))?;
        headers.insert(header, value(name, text)?);
    }
    Ok(headers)
}

/// The value is not in the message: it may be a secret.
fn value(name: &str, text: &str) -> Result<HeaderValue, ConfigError> {
    HeaderValue::from_str(text).map_err(|_| {
        ConfigError(format!(
            "the value of {name:?} has characters that HTTP does not allow"
        ))
    })
}
