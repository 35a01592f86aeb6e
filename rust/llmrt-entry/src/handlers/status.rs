//! `GET /health`, `/ready`, `/version`, `/metrics`.

use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};

use crate::api::ApiError;
use crate::core::CoreState;
use crate::http::{Body, Response, json};
use crate::metrics::exposition;
use crate::shard::Shard;

/// Alive: this worker answers and no process of the core is known to be dead. Loading is alive.
///
/// # Errors
/// 503 when the core is down.
pub fn health(shard: &Shard) -> Result<Response, ApiError> {
    match shard.core.state() {
        CoreState::Starting => Ok(json(StatusCode::OK, r#"{"status":"starting"}"#)),
        CoreState::Up => Ok(json(StatusCode::OK, r#"{"status":"ok"}"#)),
        CoreState::Down { .. } => Err(shard.core.unavailable("The model is not running.")),
    }
}

/// Ready: a generation would be taken now.
///
/// # Errors
/// 503 otherwise.
pub fn ready(shard: &Shard) -> Result<Response, ApiError> {
    let message = match shard.core.state() {
        _ if shard.draining() => "The server is shutting down.",
        CoreState::Up => return Ok(json(StatusCode::OK, r#"{"status":"ready"}"#)),
        CoreState::Starting => "The model is still loading.",
        CoreState::Down { .. } => "The model is not running.",
    };
    Err(shard.core.unavailable(message))
}

/// Version of llmrt.
pub fn version() -> Response {
    json(
        StatusCode::OK,
        concat!(r#"{"version":""#, env!("CARGO_PKG_VERSION"), r#""}"#),
    )
}

/// All metric families: the sums over the workers, each worker's, and the scheduler's.
///
/// # Errors
/// 503 when the supervisor does not tell what the other workers count: a sum without them would look like a restart.
pub async fn metrics(shard: &Shard) -> Result<Response, ApiError> {
    let workers = match &shard.control {
        None => exposition::merge(&[(shard.config.worker, &shard.metrics.render())]),
        Some(control) => control.call("metrics", "{}").await.ok_or_else(|| {
            ApiError::unavailable("The counts of the entry workers cannot be had now.")
        })?,
    };
    shard.metrics.core.set(&shard.core.stats().await);
    let text = workers + &shard.metrics.render_core();
    let mut response = Response::new(Body::from(text));
    let form =
        HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, form);
    Ok(response)
}
