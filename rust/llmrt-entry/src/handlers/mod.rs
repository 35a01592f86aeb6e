//! What each route does.

mod docs;
mod events;
mod generate;
mod models;
mod probe;
mod reply;
mod status;
mod tokenize;

pub use probe::Probes;

use std::rc::Rc;

use http::Request;

use crate::api::{ApiError, Endpoint};
use crate::http::{RequestBody, Response, Route};
use crate::router::Origin;
use crate::shard::Shard;

/// Answers `request`, which is for `route`; `parameter` is the variable part of its path.
///
/// # Errors
/// What the client is told instead of an answer.
pub async fn dispatch(
    shard: &Rc<Shard>,
    route: Route,
    parameter: Option<&str>,
    request: Request<RequestBody>,
    origin: &Origin,
) -> Result<Response, ApiError> {
    // Without siblings nobody can know better than this worker.
    if route.needs_core() && shard.control.is_some() {
        shard.core.settle().await;
    }
    match route {
        Route::ChatCompletions => generate::answer(shard, Endpoint::Chat, request, origin).await,
        Route::Completions => generate::answer(shard, Endpoint::Completions, request, origin).await,
        Route::Models => Ok(models::list(shard)),
        Route::Model => models::get(shard, parameter.unwrap_or_default()),
        Route::Tokenize => tokenize::tokenize(shard, request).await,
        Route::Detokenize => tokenize::detokenize(shard, request).await,
        Route::Health => status::health(shard),
        Route::HealthGenerate => probe::answer(shard, origin).await,
        Route::Ready => status::ready(shard),
        Route::Version => Ok(status::version()),
        Route::Metrics => status::metrics(shard).await,
        Route::OpenApi => Ok(docs::document(shard)),
        Route::Docs => Ok(docs::page(shard)),
    }
}
