//! What each route takes and gives, for the document.

use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Value, json};

use super::{answers, requests};
use crate::api::ErrorKind;
use crate::http::Route;

/// One route's entry in the document.
pub struct Operation {
    pub summary: &'static str,
    pub tag: &'static str,
    /// Schema of the body that it takes.
    pub takes: Option<Value>,
    /// Content types of its answer, with their schemas.
    pub gives: Vec<(&'static str, Value)>,
    /// Errors of its own, beside those that every route has.
    pub errors: &'static [ErrorKind],
}

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

/// What a body can be wrong by.
const BODY: &[ErrorKind] = &[ErrorKind::Invalid, ErrorKind::NotFound, ErrorKind::TooLarge];
/// What a generation can fail by.
const GENERATION: &[ErrorKind] = &[
    ErrorKind::Invalid,
    ErrorKind::NotFound,
    ErrorKind::Deadline,
    ErrorKind::TooLarge,
    ErrorKind::Overloaded,
    ErrorKind::Internal,
    ErrorKind::Unavailable,
];

/// The entry of `route`.
pub fn operation(route: Route, schemas: &mut SchemaGenerator) -> Operation {
    use answers::{
        ChatCompletion, ChatCompletionChunk, Completion, Model, Models, Probe, Status, Text,
        Tokens, Version,
    };
    use requests::{ChatCompletionRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest};
    let of = schemas;
    match route {
        Route::ChatCompletions => Operation {
            takes: takes::<ChatCompletionRequest>(of),
            gives: vec![
                (JSON, schema::<ChatCompletion>(of)),
                (EVENTS, events::<ChatCompletionChunk>(of)),
            ],
            ..new("Answer a conversation", "generation", GENERATION)
        },
        Route::Completions => Operation {
            takes: takes::<CompletionRequest>(of),
            gives: vec![
                (JSON, schema::<Completion>(of)),
                (EVENTS, events::<Completion>(of)),
            ],
            ..new("Continue a text", "generation", GENERATION)
        },
        Route::Models => gives::<Models>(of, new("List the served models", "models", &[])),
        Route::Model => gives::<Model>(
            of,
            new("Describe a served model", "models", &[ErrorKind::NotFound]),
        ),
        Route::Tokenize => Operation {
            takes: takes::<TokenizeRequest>(of),
            ..gives::<Tokens>(
                of,
                new("Token ids of a text or a conversation", "tokens", BODY),
            )
        },
        Route::Detokenize => Operation {
            takes: takes::<DetokenizeRequest>(of),
            ..gives::<Text>(of, new("The text of token ids", "tokens", BODY))
        },
        Route::Health => gives::<Status>(of, new("Whether the server lives", "server", DOWN)),
        Route::HealthGenerate => gives::<Probe>(
            of,
            new("Whether a token can be generated now", "server", PROBE),
        ),
        Route::Ready => gives::<Status>(
            of,
            new("Whether a generation would be taken now", "server", DOWN),
        ),
        Route::Version => gives::<Version>(of, new("The version of llmrt", "server", &[])),
        Route::Metrics => text("Metrics of server and core", "application/openmetrics-text"),
        Route::OpenApi => Operation {
            gives: vec![(JSON, json!({"type": "object"}))],
            ..new("This document", "server", &[])
        },
        Route::Docs => text("This document as a page", "text/html"),
    }
}

const PROBE: &[ErrorKind] = &[ErrorKind::Overloaded, ErrorKind::Unavailable];
const DOWN: &[ErrorKind] = &[ErrorKind::Unavailable];

fn new(summary: &'static str, tag: &'static str, errors: &'static [ErrorKind]) -> Operation {
    Operation {
        summary,
        tag,
        takes: None,
        gives: Vec::new(),
        errors,
    }
}

fn gives<T: JsonSchema>(schemas: &mut SchemaGenerator, operation: Operation) -> Operation {
    Operation {
        gives: vec![(JSON, schema::<T>(schemas))],
        ..operation
    }
}

fn text(summary: &'static str, content_type: &'static str) -> Operation {
    Operation {
        gives: vec![(content_type, json!({"type": "string"}))],
        ..new(summary, "server", &[])
    }
}

fn takes<T: JsonSchema>(schemas: &mut SchemaGenerator) -> Option<Value> {
    Some(schema::<T>(schemas))
}

/// A reference to the schema of `T`, which `schemas` keeps.
pub fn schema<T: JsonSchema>(schemas: &mut SchemaGenerator) -> Value {
    schemas.subschema_for::<T>().to_value()
}

/// A stream of events whose data are `T`: OpenAPI has no word for one, so the events' schema stands beside it.
fn events<T: JsonSchema>(schemas: &mut SchemaGenerator) -> Value {
    json!({
        "type": "string",
        "description": "Events `data: {...}`, then `data: [DONE]`; each is of the schema under x-event-schema.",
        "x-event-schema": schema::<T>(schemas),
    })
}
