//! `GET /openapi.json` and `/docs`.

use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};

use crate::http::{Body, Response, json};
use crate::openapi::Forms;
use crate::shard::Shard;

/// The OpenAPI document.
pub fn document(shard: &Shard) -> Response {
    json(StatusCode::OK, forms(shard).json)
}

/// The same as a page for people.
pub fn page(shard: &Shard) -> Response {
    let mut response = Response::new(Body::from(forms(shard).html));
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/html; charset=utf-8"),
    );
    // The page has its own style and nothing else.
    headers.insert(
        CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'"),
    );
    response
}

fn forms(shard: &Shard) -> Forms {
    let keys = shard.keys.are_asked_for();
    shard.documents.get(&shard.api_limits(), keys)
}
