//! The service that hyper calls for every request.

use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use http::header::{ALLOW, CONNECTION, CONTENT_LENGTH};
use http::{HeaderValue, Method, Request, StatusCode, Version};
use http_body_util::Either;
use hyper::body::{Body as _, Incoming};
use hyper::service::Service;

use super::body::{RequestBody, leave};
use super::cors;
use super::keys;
use super::request_id::X_REQUEST_ID;
use super::response::{Response, error};
use super::routes::Found;
use crate::api::{ApiError, ErrorKind};
use crate::handlers;
use crate::router::Origin;
use crate::server::Peer;
use crate::shard::Shard;

/// Answers the requests of a connection, or of this process.
#[derive(Clone)]
pub struct HttpService {
    shard: Rc<Shard>,
    peer: Option<Rc<Peer>>,
}

impl HttpService {
    /// For requests of this process.
    pub fn new(shard: Rc<Shard>) -> Self {
        Self { shard, peer: None }
    }

    /// For the connection of `peer`.
    pub fn of(shard: Rc<Shard>, peer: Rc<Peer>) -> Self {
        let peer = Some(peer);
        Self { shard, peer }
    }

    /// Answers a request, wherever it came from.
    pub async fn answer(&self, request: Request<RequestBody>) -> Response {
        let shard = &self.shard;
        let origin = Origin {
            label: shard.request_ids.of(request.headers()),
            tenant: shard.keys.anybody(),
            arrived: Instant::now(),
        };
        let bodiless = request.method() == Method::HEAD;
        let page = shard.cors.origin(&request);
        let mut response = admit(shard, request, &origin, &page).await;
        shard.cors.finish(page, response.headers_mut());
        if bodiless {
            remove_body(&mut response);
        }
        // Ids are visible ASCII, which any header takes.
        if let Ok(value) = HeaderValue::from_str(&origin.label) {
            response.headers_mut().insert(X_REQUEST_ID, value);
        }
        response
    }
}

impl Service<Request<Incoming>> for HttpService {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>>>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let service = self.clone();
        // HTTP/1.0 has no chunks, and HTTP/2 no connection of the response's own.
        let chunked = request.version() == Version::HTTP_11;
        Box::pin(async move {
            let multiplexed = request.version() >= Version::HTTP_2;
            let stake = service.peer.as_ref().map(|peer| peer.open(multiplexed));
            let mut response = service.answer(request.map(Either::Left)).await;
            let patience = service.shard.config.limits.stall_timeout();
            let body = response.body_mut();
            body.watch(patience);
            if let Some(stake) = stake {
                body.keep(stake);
            }
            if chunked {
                response.body_mut().shorten();
            }
            Ok(response)
        })
    }
}

/// Answers a request that is well-formed, for us, and from where requests may come.
async fn admit(
    shard: &Rc<Shard>,
    request: Request<RequestBody>,
    origin: &Origin,
    page: &cors::Origin,
) -> Response {
    // HTTP/1.1 has this bound in its parser, HTTP/2 only one on bytes.
    if request.headers().len() > shard.config.limits.max_headers {
        let refusal = ApiError::invalid("The request has too many header fields.");
        let mut response = refused(shard, request, &refusal);
        *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        return response;
    }
    // Requests of this process name no host.
    if matches!(request.body(), Either::Left(_))
        && let Err(refusal) = shard.hosts.check(&request)
    {
        let version = request.version();
        return closing(refused(shard, request, &refusal), version);
    }
    match shard.cors.admit(&request, page) {
        Ok(None) => respond(shard, request, origin).await,
        Ok(Some(preflight)) => preflight,
        Err(refusal) => refused(shard, request, &refusal),
    }
}

/// The answer to a request that is refused before its body is read.
fn refused(shard: &Shard, request: Request<RequestBody>, refusal: &ApiError) -> Response {
    unread(shard, request);
    error(refusal)
}

fn unread(shard: &Shard, request: Request<RequestBody>) {
    let (head, body) = request.into_parts();
    leave(shard, &head, body);
}

async fn respond(shard: &Rc<Shard>, request: Request<RequestBody>, origin: &Origin) -> Response {
    let method = request.method().clone();
    let path = below(&shard.config.web.root_path, request.uri().path()).to_owned();
    let version = request.version();
    let mut origin = origin.clone();
    let answer = match shard.routes.find(&method, &path) {
        Found::Route(route, parameter) => {
            match keys::authorise(&shard.keys, route, request.headers()) {
                Ok(tenant) => {
                    origin.tenant = tenant;
                    handlers::dispatch(shard, route, parameter, request, &origin).await
                }
                Err(refusal) => {
                    unread(shard, request);
                    Err(refusal)
                }
            }
        }
        Found::Method(allow) => {
            unread(shard, request);
            return method_not_allowed(allow);
        }
        Found::Nothing => {
            unread(shard, request);
            Err(ApiError::route_not_found(method.as_str(), &path))
        }
    };
    answer.unwrap_or_else(|refusal| {
        let status = refusal.status().as_u16();
        let request_id = &*origin.label;
        let key = origin.tenant.name();
        let key = key.as_deref();
        let reason = refusal.message();
        // Probes ask again and again while a model loads.
        if method == Method::GET {
            tracing::debug!(request_id, key, %method, path, status, reason, "refused");
        } else {
            tracing::info!(request_id, key, %method, path, status, reason, "refused");
        }
        // The rest of the body may never be read, and then nothing can follow it.
        if refusal.kind() == ErrorKind::TooLarge {
            return closing(error(&refusal), version);
        }
        error(&refusal)
    })
}

/// The path without the prefix that a proxy has put before it, or not.
fn below<'p>(root: &str, path: &'p str) -> &'p str {
    match path.strip_prefix(root) {
        Some(rest) if rest.starts_with('/') => rest,
        _ => path,
    }
}

/// Ends an HTTP/1.1 connection with this response.
fn closing(mut response: Response, version: Version) -> Response {
    if version < Version::HTTP_2 {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(CONNECTION, close);
    }
    response
}

/// HTTP/1.1 leaves the body of an answer to HEAD out by itself, HTTP/2 does not.
fn remove_body(response: &mut Response) {
    if let Some(length) = response.body().size_hint().exact() {
        response
            .headers_mut()
            .insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    *response.body_mut() = Bytes::new().into();
}

fn method_not_allowed(allow: &'static str) -> Response {
    let refusal = ApiError::new(
        ErrorKind::MethodNotAllowed,
        format!("This route takes {allow}."),
    );
    let mut response = error(&refusal);
    response
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static(allow));
    response
}

#[cfg(test)]
mod tests {
    use super::below;

    #[test]
    fn a_prefix_is_whole_segments() {
        assert_eq!(below("", "/v1/models"), "/v1/models");
        assert_eq!(below("/llm", "/llm/v1/models"), "/v1/models");
        assert_eq!(below("/llm", "/v1/models"), "/v1/models");
        assert_eq!(below("/llm", "/llmx/v1"), "/llmx/v1");
        assert_eq!(below("/llm", "/llm"), "/llm");
    }
}
