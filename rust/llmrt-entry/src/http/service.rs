//! The service that hyper calls for every request.

use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use http::header::{ALLOW, CONNECTION, CONTENT_LENGTH, HOST};
use http::{HeaderValue, Method, Request, StatusCode, Version};
use http_body_util::Either;
use hyper::body::{Body as _, Incoming};
use hyper::service::Service;

use super::body::RequestBody;
use super::keys;
use super::request_id::X_REQUEST_ID;
use super::response::{Response, error};
use super::routes::Found;
use crate::api::{ApiError, ErrorKind};
use crate::handlers;
use crate::router::Origin;
use crate::shard::Shard;

/// Answers the requests of all connections of a shard.
#[derive(Clone)]
pub struct HttpService(Rc<Shard>);

impl HttpService {
    pub fn new(shard: Rc<Shard>) -> Self {
        Self(shard)
    }

    /// Answers a request, wherever it came from.
    pub async fn answer(&self, request: Request<RequestBody>) -> Response {
        let shard = &self.0;
        let origin = Origin {
            label: shard.request_ids.of(request.headers()),
            arrived: Instant::now(),
        };
        let bodiless = request.method() == Method::HEAD;
        let mut response = respond(shard, request, &origin).await;
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
        Box::pin(async move {
            let mut response = service.answer(request.map(Either::Left)).await;
            let patience = service.0.config.limits.stall_timeout();
            response.body_mut().watch(patience);
            Ok(response)
        })
    }
}

async fn respond(shard: &Rc<Shard>, request: Request<RequestBody>, origin: &Origin) -> Response {
    // HTTP/1.1 has this bound in its parser, HTTP/2 only one on bytes.
    if request.headers().len() > shard.config.limits.max_headers {
        let mut response = error(&ApiError::invalid(
            "The request has too many header fields.",
        ));
        *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        return response;
    }
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let version = request.version();
    if let Err(refusal) = check_host(&request) {
        return closing(error(&refusal));
    }
    let answer = match shard.routes.find(&method, &path) {
        Found::Route(route, parameter) => {
            match keys::authorise(&shard.config.api_keys, route, request.headers()) {
                Ok(()) => handlers::dispatch(shard, route, parameter, request, origin).await,
                Err(refusal) => Err(refusal),
            }
        }
        Found::Method(allow) => return method_not_allowed(allow),
        Found::Nothing => Err(ApiError::route_not_found(method.as_str(), &path)),
    };
    answer.unwrap_or_else(|refusal| {
        let status = refusal.status().as_u16();
        let request_id = &*origin.label;
        let reason = refusal.message();
        // Probes ask again and again while a model loads.
        if method == Method::GET {
            tracing::debug!(request_id, %method, path, status, reason, "refused");
        } else {
            tracing::info!(request_id, %method, path, status, reason, "refused");
        }
        // The rest of the body may never be read, and then nothing can follow it.
        if refusal.kind() == ErrorKind::TooLarge && version < Version::HTTP_2 {
            return closing(error(&refusal));
        }
        error(&refusal)
    })
}

/// HTTP/1.1 (RFC 9112, section 3.2) asks for exactly one `Host`: a proxy before us might take another than we do.
///
/// # Errors
/// 400 where it is missing or repeated.
fn check_host(request: &Request<RequestBody>) -> Result<(), ApiError> {
    // Requests of this process, and of HTTP/2, have no such head.
    if matches!(request.body(), Either::Right(_)) || request.version() >= Version::HTTP_2 {
        return Ok(());
    }
    match request.headers().get_all(HOST).iter().count() {
        1 => Ok(()),
        // HTTP/1.0 has none yet.
        0 if request.version() < Version::HTTP_11 => Ok(()),
        0 => Err(ApiError::invalid("The request has no Host header.")),
        _ => Err(ApiError::invalid(
            "The request has more than one Host header.",
        )),
    }
}

/// Ends an HTTP/1.1 connection with this response.
fn closing(mut response: Response) -> Response {
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(CONNECTION, close);
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
