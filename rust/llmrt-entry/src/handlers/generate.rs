//! `POST /v1/chat/completions` and `/v1/completions`.
//!
//! Body and fields are read on the shard, unless they are long, the prompts are made on the tokenizer's threads, and a
//! request of the core is open for each answer from its submission on. Until then a client that leaves drops this
//! future, and with it the permits.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Request};
use llmrt_link::SendError;
use serde_json::Value;

use super::reply::Reply;
use super::tokenize::last;
use crate::api::{
    ApiError, ChatRequest, CompletionRequest, Endpoint, Limits, Options, Placing, Prompt, Prompted,
    seed_of,
};
use crate::gate::{Answers, Permit, Turn};
use crate::http::{Held, RequestBody, Response, read_json};
use crate::metrics::Rejection;
use crate::router::{Opening, Origin};
use crate::shard::Shard;

/// Seconds within which the whole answer must be there.
const X_REQUEST_TIMEOUT: HeaderName = HeaderName::from_static("x-request-timeout");

/// Reads, checks and submits a request, and answers it as a stream or at once.
pub async fn answer(
    shard: &Rc<Shard>,
    endpoint: Endpoint,
    request: Request<RequestBody>,
    origin: &Origin,
) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    let body = read_json(shard, &head, body).await?;
    let limits = shard.api_limits();
    let parse = move |body: Bytes| parse(endpoint, &body, &limits);
    let Held {
        value: (input, mut options),
        place,
    } = shard.prompts.convert(body.body_len(), body, parse).await?;
    if !options.unknown.is_empty() {
        tracing::debug!(request_id = &*origin.label, fields = ?options.unknown, "unknown fields");
    }
    let model = shard.models.resolve(options.model.as_deref())?.to_owned();
    shard.check_open()?;
    let count = input.count() * options.details.n;
    bound_time(shard, &head.headers, &mut options)?;
    let admitted = async {
        let admitted = shard.gate.admit(&origin.tenant, count, true).await;
        admitted.map_err(|refusal| refusal.count(&shard.metrics))
    };
    let permits = in_time(&options.placing, origin, admitted).await?;
    let input = Held {
        value: input,
        place,
    };
    let prompts = prepare(shard, input, &mut options, origin).await?;
    let mut requests = requests(shard, &prompts, &options, origin)?;
    let turns = wait_for_turn(shard, &permits, &mut requests, &options, origin).await?;
    // The core may have gone meanwhile.
    shard.check_open()?;
    let reply = Reply::new(shard, endpoint, model, &options, requests[0].id, prompts);
    let openings = permits.into_iter().zip(turns).zip(requests).enumerate();
    let openings = openings.map(|(choice, ((permit, turn), request))| Opening {
        permit,
        turn: Some(turn),
        request,
        form: reply.form(choice as u32),
    });
    let guards = shard
        .router
        .open(openings.collect(), origin)
        .map_err(|error| not_taken(shard, error))?;
    reply.answer(shard, guards).await
}

/// What prompts are made from.
enum Input {
    Messages(Vec<Value>),
    Prompts(Vec<Prompt>),
}

impl Input {
    fn count(&self) -> u32 {
        match self {
            Self::Messages(_) => 1,
            Self::Prompts(prompts) => prompts.len() as u32,
        }
    }
}

fn parse(endpoint: Endpoint, body: &[u8], limits: &Limits) -> Result<(Input, Options), ApiError> {
    Ok(match endpoint {
        Endpoint::Chat => {
            let request = ChatRequest::parse(body, limits)?;
            (Input::Messages(request.messages), request.options)
        }
        Endpoint::Completions => {
            let request = CompletionRequest::parse(body, limits)?;
            (Input::Prompts(request.prompts), request.options)
        }
    })
}

/// All that needs the tokenizer, within the request's deadline.
async fn prepare(
    shard: &Shard,
    input: Held<Input>,
    options: &mut Options,
    origin: &Origin,
) -> Result<Vec<Prompted>, ApiError> {
    let placing = options.placing.clone();
    let prepared = async {
        let words = options.generation.bad_words();
        if !words.is_empty() {
            let words = shard.prompts.words(words.to_vec()).await?;
            options.generation.set_bad_words(words);
        }
        if options.details.tell() {
            shard.prompts.prepare_decoder().await?;
        }
        options.generation.report(&options.details);
        prompts(shard, input, options).await
    };
    in_time(&placing, origin, prepared).await
}

/// Waits for `work` until the request's deadline.
async fn in_time<T>(
    placing: &Placing,
    origin: &Origin,
    work: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    match placing.time_left(origin.arrived.elapsed())? {
        None => work.await,
        Some(left) => match tokio::time::timeout(left, work).await {
            Ok(done) => done,
            Err(_) => Err(placing.too_late()),
        },
    }
}

/// Takes the bounds on a request's time that do not stand in its body.
///
/// # Errors
/// 400 when the header is no number of seconds.
fn bound_time(shard: &Shard, headers: &HeaderMap, options: &mut Options) -> Result<(), ApiError> {
    if let Some(value) = headers.get(X_REQUEST_TIMEOUT) {
        let seconds = value.to_str().ok().and_then(|text| text.parse().ok());
        let bound = seconds.filter(|seconds| (0.001..=86_400.0).contains(seconds));
        let bound = bound.ok_or_else(|| {
            ApiError::invalid(
                "The header `x-request-timeout` must be between 0.001 and 86400 seconds.",
            )
        })?;
        options.placing.bound(Duration::from_secs_f64(bound));
    }
    if let Some(bound) = shard.config.limits.request_timeout() {
        options.placing.bound(bound);
    }
    Ok(())
}

/// Waits until `requests` may be submitted, which then know how much time is left.
///
/// # Errors
/// 429 when too many tokens wait; 408 when the deadline passes, or the request could not make it any more.
async fn wait_for_turn(
    shard: &Shard,
    permits: &[Permit],
    requests: &mut [llmrt_wire::Request],
    options: &Options,
    origin: &Origin,
) -> Result<Vec<Turn>, ApiError> {
    let tokens = requests.iter().map(|request| request.prompt.len() as u32);
    let tokens: Vec<u32> = tokens.collect();
    let placing = &options.placing;
    let deadline = placing.deadline.map(|bound| origin.arrived + bound);
    let priority = requests.first().map_or(0, |request| request.priority);
    let answers = Answers::new(&tokens, priority, deadline);
    let queued = async {
        let turns = shard.gate.queue(permits, answers).await;
        turns.map_err(|refusal| refusal.count(&shard.metrics))
    };
    let turns = in_time(placing, origin, queued).await?;
    let left = placing.time_left(origin.arrived.elapsed())?;
    for request in requests {
        request.deadline_ms = left.map(|left| left.as_millis() as u32);
    }
    Ok(turns)
}

/// Each prompt as tokens; the place of their body is free then.
async fn prompts(
    shard: &Shard,
    input: Held<Input>,
    options: &Options,
) -> Result<Vec<Prompted>, ApiError> {
    let context = shard.api_limits().max_model_len;
    let prompting = &options.prompting;
    let Held { value, place } = input;
    let (prompts, texts) = match value {
        Input::Messages(value) => {
            let messages = Held { value, place };
            let prompting = prompting.clone();
            let prompt = shard.prompts.chat(messages, prompting, context).await?;
            (vec![prompt.value], Vec::new())
        }
        Input::Prompts(value) => {
            let texts = if options.details.echo {
                value.iter().map(Prompt::text).collect()
            } else {
                Vec::new()
            };
            let prompts = Held { value, place };
            let special = prompting.add_special_tokens;
            let prompts = shard.prompts.tokens(prompts, special, context).await?;
            (prompts.value, texts)
        }
    };
    let most = prompting.most_tokens(options.generation.max_tokens(), context);
    let mut texts = texts.into_iter();
    let mut prompted = Vec::with_capacity(prompts.len());
    for tokens in prompts {
        // The text of a prompt that was cut is that of what is left.
        let text = texts
            .next()
            .map(|text| text.filter(|_| tokens.len() <= most));
        let tokens = last(tokens, most);
        prompted.push(match text {
            None => Prompted {
                tokens,
                ..Prompted::default()
            },
            Some(text) => Prompted {
                skips_special: text.is_some(),
                echo: Some(match text {
                    Some(text) => text,
                    None => shard.prompts.text(tokens.clone()).await?,
                }),
                tokens,
            },
        });
    }
    Ok(prompted)
}

/// A request of the core for each choice: `n` for each prompt, in order.
fn requests(
    shard: &Shard,
    prompts: &[Prompted],
    options: &Options,
    origin: &Origin,
) -> Result<Vec<llmrt_wire::Request>, ApiError> {
    let limits = shard.api_limits();
    let n = options.details.n;
    let mut requests = Vec::with_capacity(prompts.len() * n as usize);
    for prompt in prompts {
        let (sampling, output) = options
            .generation
            .clone()
            .fit(prompt.tokens.len(), &limits)?;
        for choice in 0..n {
            let mut sampling = sampling.clone();
            sampling.seed = sampling.seed.map(|seed| seed_of(seed, choice));
            requests.push(llmrt_wire::Request {
                id: shard.router.next_id(),
                prompt: prompt.tokens.clone().into(),
                sampling,
                output: output.clone(),
                priority: origin.tenant.priority(options.placing.priority),
                cache_salt: options.placing.cache_salt.clone(),
                deadline_ms: None,
            });
        }
    }
    Ok(requests)
}

/// What a client is told whose request the scheduler did not take.
pub(super) fn not_taken(shard: &Shard, error: SendError) -> ApiError {
    match error {
        SendError::Full => {
            shard.metrics.rejected(Rejection::Credit);
            ApiError::overloaded("The scheduler's queue is full; try again later.")
        }
        SendError::NotReady => {
            shard.metrics.rejected(Rejection::CoreDown);
            shard.core.unavailable("The model is not running.")
        }
    }
}
