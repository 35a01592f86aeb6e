//! The answer to a generation request: its choices together, streamed or whole.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::future::try_join_all;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use llmrt_wire::{Outcome, RequestId};

use super::events::{AllChoices, OneOfMany, OpenAiEvents, StreamedDetails};
use crate::api::response::{self, Answer};
use crate::api::{
    ApiError, Choice, ChunkWriter, Details, Endpoint, Envelope, Finish, Names, Options, Parts,
    Prompted, Streaming, Telling, Told, Usage,
};
use crate::http::{Body, Response, json};
use crate::router::{ChoicesBody, End, Form, RequestGuard};
use crate::shard::Shard;

/// What is known of an answer before its text.
pub struct Reply {
    endpoint: Endpoint,
    id: String,
    created: u64,
    model: String,
    streaming: Streaming,
    /// Choices for each prompt.
    n: u32,
    /// Choices altogether.
    count: u32,
    stop_token_ids: Vec<u32>,
    details: Arc<Details>,
    /// The prompts, if anything is told beside the text.
    prompts: Vec<Arc<Prompted>>,
    names: Names,
    skip_special: bool,
}

impl Reply {
    /// The answer to a request with these `options`, whose first choice has the id `first`.
    pub fn new(
        shard: &Shard,
        endpoint: Endpoint,
        model: String,
        options: &Options,
        first: RequestId,
        prompts: Vec<Prompted>,
    ) -> Self {
        let details = Arc::new(options.details.clone());
        let count = prompts.len() as u32 * details.n;
        Self {
            endpoint,
            id: response::response_id(endpoint, shard.incarnation, first),
            created: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |now| now.as_secs()),
            model,
            streaming: options.streaming,
            n: details.n,
            count,
            stop_token_ids: options.generation.stop_token_ids().to_vec(),
            names: Names::new(shard.prompts.tokenizer().clone(), details.tokens_as_ids),
            skip_special: options.generation.skips_special_tokens(),
            prompts: match details.tell() {
                true => prompts.into_iter().map(Arc::new).collect(),
                false => Vec::new(),
            },
            details,
        }
    }

    /// The form in which a choice's results leave.
    pub fn form(&self, choice: u32) -> Form {
        if !self.streaming.stream {
            return Form::Text(self.details.tell().then(Box::default));
        }
        let details = self.telling(choice).map(|telling| {
            Box::new(StreamedDetails {
                telling,
                untold: Told::default(),
            })
        });
        let events = OpenAiEvents {
            writer: self.writer(),
            choice: Choice::new(choice),
            stop_token_ids: self.stop_token_ids.clone(),
            details,
        };
        Form::Events(if self.count == 1 {
            Box::new(events)
        } else {
            Box::new(OneOfMany(events))
        })
    }

    /// The response to open requests, one for each choice in order.
    ///
    /// # Errors
    /// Of an answer that is not streamed: that of the first choice that failed. The others are cancelled then.
    pub async fn answer(
        self,
        shard: &Shard,
        mut guards: Vec<RequestGuard>,
    ) -> Result<Response, ApiError> {
        if !self.streaming.stream {
            return self.collect(shard, guards).await;
        }
        Ok(event_stream(match guards.pop() {
            Some(only) if guards.is_empty() => Body::Events(only.into_body()),
            last => {
                guards.extend(last);
                let closing = AllChoices {
                    writer: self.writer(),
                    n: self.n as usize,
                };
                Body::Choices(ChoicesBody::new(guards, Box::new(closing)))
            }
        }))
    }

    /// What tells of a choice beside its text; `None` when nothing is to be told.
    fn telling(&self, choice: u32) -> Option<Telling> {
        let prompt = self.prompts.get((choice / self.n) as usize)?;
        Some(Telling::new(
            self.endpoint,
            self.details.clone(),
            self.names.clone(),
            prompt.clone(),
            self.skip_special,
            choice == 0,
        ))
    }

    fn writer(&self) -> ChunkWriter {
        ChunkWriter::new(self.endpoint, &self.envelope(), self.streaming)
    }

    fn envelope(&self) -> Envelope<'_> {
        Envelope {
            id: &self.id,
            created: self.created,
            model: &self.model,
        }
    }

    /// Waits for the end of all choices and makes the whole answer.
    async fn collect(self, shard: &Shard, guards: Vec<RequestGuard>) -> Result<Response, ApiError> {
        let mut choices = try_join_all(guards.iter().map(whole)).await?;
        let usages: Vec<Usage> = choices.iter().map(|choice| choice.usage).collect();
        let usage = Usage::of_choices(&usages, self.n as usize);
        let mut told = Vec::new();
        for (index, choice) in (0..).zip(&mut choices) {
            let tokens = std::mem::take(&mut choice.told);
            told.extend(self.telling(index).map(|telling| (telling, tokens)));
        }
        let size = told.iter().map(|(_, tokens)| tokens.json_size()).sum();
        let write = move || {
            let parts = |(mut telling, tokens): (Telling, Told)| telling.parts(tokens);
            told.into_iter().map(parts).collect::<Vec<Parts>>()
        };
        let parts = shard.prompts.write(size, write).await?;
        let body = self.body(&choices, &parts, usage);
        // Their permits return when the answer has left, not when it is known.
        Ok(json(StatusCode::OK, body).map(|body| body.holding(guards)))
    }

    fn body(&self, choices: &[Whole], parts: &[Parts], usage: Usage) -> Bytes {
        let nothing = Parts::default();
        let answers: Vec<Answer> = choices
            .iter()
            .enumerate()
            .map(|(index, choice)| Answer {
                index: index as u32,
                text: &choice.text,
                finish: Finish::new(&choice.outcome, &self.stop_token_ids),
                parts: parts.get(index).unwrap_or(&nothing),
            })
            .collect();
        response::body(self.endpoint, &self.envelope(), &answers, usage)
    }
}

/// A choice that has ended well.
pub struct Whole {
    text: String,
    told: Told,
    pub usage: Usage,
    outcome: Outcome,
}

/// A choice when it has ended.
///
/// # Errors
/// That of a choice that failed.
pub async fn whole(guard: &RequestGuard) -> Result<Whole, ApiError> {
    let answer = guard.answer().await;
    match answer.end {
        End::Finished(outcome) => Ok(Whole {
            text: answer.text,
            told: answer.told,
            usage: answer.usage,
            outcome,
        }),
        End::Failed(error) => Err(error),
    }
}

fn event_stream(body: Body) -> Response {
    let mut response = Response::new(body);
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
