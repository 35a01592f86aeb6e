//! `POST /v1/chat/completions` and `/v1/completions`.
//!
//! Body and fields are read on the shard, unless they are long, the prompt is made on the tokenizer's threads, and the
//! request is open from its submission on. Until then a client that leaves drops this future, and with it the permit.

use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Request, StatusCode};
use llmrt_link::SendError;
use serde_json::Value;

use super::events::OpenAiEvents;
use crate::api::response::{self, Answer};
use crate::api::{
    ApiError, ChatRequest, Choice, ChunkWriter, CompletionRequest, Endpoint, Envelope, Finish,
    Limits, Options, Prompt,
};
use crate::http::{Body, Held, RequestBody, Response, json, read_json};
use crate::metrics::Rejection;
use crate::router::{End, Form, Origin, Permit, RequestGuard};
use crate::shard::Shard;

/// Reads, checks and submits a request, and answers it as a stream or at once.
pub async fn answer(
    shard: &Rc<Shard>,
    endpoint: Endpoint,
    request: Request<RequestBody>,
    origin: &Origin,
) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    let body = read_json(shard, &head.headers, body).await?;
    let limits = shard.api_limits();
    let parse = move |body: Bytes| parse(endpoint, &body, &limits);
    let Held {
        value: (input, options),
        place,
    } = shard.prompts.convert(body.body_len(), body, parse).await?;
    if !options.unknown.is_empty() {
        tracing::debug!(request_id = &*origin.label, fields = ?options.unknown, "unknown fields");
    }
    let model = shard.models.resolve(options.model.as_deref())?.to_owned();
    shard.check_open()?;
    let permit = admit(shard)?;
    let prompt = tokens(
        shard,
        Held {
            value: input,
            place,
        },
    )
    .await?;
    let streaming = options.streaming;
    let id = shard.router.next_id();
    let reply = Reply {
        endpoint,
        id: response::response_id(endpoint, shard.incarnation, id),
        created: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |now| now.as_secs()),
        model,
        stop_token_ids: options.generation.stop_token_ids().to_vec(),
    };
    let (sampling, output) = options.generation.fit(prompt.len(), &shard.api_limits())?;
    let (priority, cache_salt) = (0, String::new());
    let request = llmrt_wire::Request {
        id,
        prompt: prompt.into(),
        sampling,
        output,
        priority,
        cache_salt,
        deadline_ms: None,
    };
    // The core may have gone while the prompt was made.
    shard.check_open()?;
    let open = |form| {
        let opened = shard.router.open(permit, request, form, origin.clone());
        opened.map_err(|error| not_taken(shard, error))
    };
    if streaming.stream {
        return Ok(event_stream(open(reply.events(streaming.include_usage))?));
    }
    reply.collect(open(Form::Text)?).await
}

/// What a prompt is made from.
enum Input {
    Messages(Vec<Value>),
    Prompt(Prompt),
}

fn parse(endpoint: Endpoint, body: &[u8], limits: &Limits) -> Result<(Input, Options), ApiError> {
    Ok(match endpoint {
        Endpoint::Chat => {
            let request = ChatRequest::parse(body, limits)?;
            (Input::Messages(request.messages), request.options)
        }
        Endpoint::Completions => {
            let request = CompletionRequest::parse(body, limits)?;
            (Input::Prompt(request.prompt), request.options)
        }
    })
}

/// Token ids of the prompt; the place of its body is free then.
async fn tokens(shard: &Shard, input: Held<Input>) -> Result<Vec<u32>, ApiError> {
    let context = shard.api_limits().max_model_len;
    let Held { value, place } = input;
    let tokens = match value {
        Input::Messages(value) => {
            let messages = Held { value, place };
            shard.prompts.chat(messages, true, context).await?
        }
        Input::Prompt(Prompt::Text(value)) => {
            let text = Held { value, place };
            shard.prompts.text(text, true, context).await?
        }
        Input::Prompt(Prompt::Tokens(value)) => Held { value, place },
    };
    Ok(tokens.value)
}

/// A permit for one generation.
///
/// # Errors
/// 429 while all are out.
pub(super) fn admit(shard: &Shard) -> Result<Permit, ApiError> {
    shard.router.admit().ok_or_else(|| {
        shard.metrics.rejected(Rejection::Permits);
        ApiError::overloaded("Too many requests are open; try again later.")
    })
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

/// What is known of an answer before its text.
struct Reply {
    endpoint: Endpoint,
    id: String,
    created: u64,
    model: String,
    stop_token_ids: Vec<u32>,
}

impl Reply {
    fn envelope(&self) -> Envelope<'_> {
        Envelope {
            id: &self.id,
            created: self.created,
            model: &self.model,
        }
    }

    fn events(self, include_usage: bool) -> Form {
        Form::Events(Box::new(OpenAiEvents {
            writer: ChunkWriter::new(self.endpoint, &self.envelope(), include_usage),
            choice: Choice::new(0),
            stop_token_ids: self.stop_token_ids,
        }))
    }

    /// Waits for the end and makes the whole answer.
    async fn collect(self, guard: RequestGuard) -> Result<Response, ApiError> {
        let (text, usage, end) = guard.answer().await;
        match end {
            End::Finished(outcome) => {
                let finish = Finish::new(&outcome, &self.stop_token_ids);
                let answer = Answer {
                    index: 0,
                    text: &text,
                    finish,
                };
                let body = response::body(self.endpoint, &self.envelope(), &[answer], usage);
                // Its permit returns when the answer has left, not when it is known.
                Ok(json(StatusCode::OK, body).map(|body| body.holding(guard)))
            }
            End::Failed(error) => Err(error),
        }
    }
}

fn event_stream(guard: RequestGuard) -> Response {
    let mut response = Response::new(Body::Events(guard.into_body()));
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream; charset=utf-8"),
    );
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that know this header then pass events on at once.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
