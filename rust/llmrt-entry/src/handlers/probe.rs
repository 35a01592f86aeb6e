//! `GET /health_generate`: one real token, on the way that every request takes.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use futures_util::future::try_join_all;
use http::StatusCode;
use llmrt_wire::{Output, Request, Sampling};

use super::generate::not_taken;
use super::reply::whole;
use crate::api::ApiError;
use crate::http::{Response, json};
use crate::router::{Form, Opening, Origin};
use crate::shard::Shard;

/// Probes that may be under way at once. A few watchers fit; a flood must not keep the model busy.
const MAX_PROBES: usize = 4;

/// Counts the probes under way.
#[derive(Default)]
pub struct Probes(Cell<usize>);

struct Place<'a>(&'a Probes);

impl Probes {
    fn enter(&self) -> Option<Place<'_>> {
        (self.0.get() < MAX_PROBES).then(|| {
            self.0.set(self.0.get() + 1);
            Place(self)
        })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.0.set(self.0.0.get() - 1);
    }
}

/// Has the model generate one token.
///
/// # Errors
/// 503 when none comes in time, or the core is not up; 429 when too many probes or requests are under way.
pub async fn answer(shard: &Rc<Shard>, origin: &Origin) -> Result<Response, ApiError> {
    shard.check_open()?;
    let _place = (shard.probes.enter())
        .ok_or_else(|| ApiError::overloaded("Too many probes are under way; try again later."))?;
    let began = Instant::now();
    let opening = |permit| Opening {
        permit,
        turn: None,
        request: one_token(shard),
        form: Form::Text(None),
    };
    let admitted = shard.gate.admit(&origin.tenant, 1, false).await;
    let permits = admitted.map_err(|refusal| refusal.count(&shard.metrics))?;
    let openings = permits.into_iter().map(opening).collect();
    let guards = shard
        .router
        .open(openings, origin)
        .map_err(|error| not_taken(shard, error))?;
    let patience = shard.config.limits.health_timeout();
    let answers = try_join_all(guards.iter().map(whole));
    match tokio::time::timeout(patience, answers).await {
        Ok(Ok(answers)) if answers.iter().all(|one| one.usage.completion_tokens > 0) => {
            let seconds = began.elapsed().as_secs_f64();
            let body = format!(r#"{{"status":"ok","seconds":{seconds:.3}}}"#);
            Ok(json(StatusCode::OK, body))
        }
        Ok(Err(error)) => Err(shard.core.unavailable(error.message())),
        Ok(Ok(_)) => Err(ApiError::unavailable("The model generated no token.")),
        Err(_) => Err(ApiError::unavailable(format!(
            "The model generated no token in {} s.",
            patience.as_secs_f64()
        ))),
    }
}

fn one_token(shard: &Shard) -> Request {
    Request {
        id: shard.router.next_id(),
        // Any id of the vocabulary will do.
        prompt: vec![0].into(),
        sampling: Sampling {
            temperature: 0.0,
            max_tokens: 1,
            ignore_eos: true,
            ..Sampling::default()
        },
        output: Output::default(),
        priority: 0,
        cache_salt: String::new(),
        // Whoever waits for it leaves in time, which aborts it.
        deadline_ms: None,
    }
}
