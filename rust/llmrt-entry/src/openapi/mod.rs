//! The OpenAPI document of the API, and a page that shows it.
//!
//! It is put together from the route table, the schemas of request and answer types, and the rules of fields that are
//! not supported, so that none of them can be forgotten. Format: OpenAPI 3.1.0, whose schemas are JSON Schema 2020-12.

mod answers;
mod neutral;
mod operations;
mod page;
mod requests;
mod scalars;
#[cfg(test)]
mod tests;

use std::cell::RefCell;

use bytes::Bytes;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::api::{Endpoint, ErrorKind, Limits};
use crate::http::{Route, table};
use operations::{Operation, operation, schema};

/// The document in both forms, made when first asked for and again when the limits have changed.
#[derive(Default)]
pub struct Documents(RefCell<Option<(Limits, bool, Forms)>>);

/// The document as it leaves.
#[derive(Clone)]
pub struct Forms {
    pub json: Bytes,
    pub html: Bytes,
}

impl Documents {
    /// The document of a server with these limits; with `keys`, its routes need one.
    pub fn get(&self, limits: &Limits, keys: bool) -> Forms {
        let mut known = self.0.borrow_mut();
        if let Some((of, with_keys, forms)) = &*known
            && of == limits
            && *with_keys == keys
        {
            return forms.clone();
        }
        let document = document(limits, keys);
        let forms = Forms {
            json: document.to_string().into(),
            html: page::render(&document).into(),
        };
        *known = Some((limits.clone(), keys, forms.clone()));
        forms
    }
}

/// The whole document.
pub fn document(limits: &Limits, keys: bool) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut schemas = settings.into_generator();
    let mut paths = Map::new();
    for (path, method, route) in table() {
        let operation = operation(*route, &mut schemas);
        let path = path.replace("{*", "{");
        let entry =
            json!({ method.as_str().to_ascii_lowercase(): describe(*route, operation, keys) });
        paths.insert(path, entry);
    }
    let error = schema::<answers::Error>(&mut schemas);
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "llmrt",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The OpenAI API for text, served by llmrt. Fields that it has never heard of are accepted and logged.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas.take_definitions(true),
            "responses": responses(&error),
            "headers": headers(),
        },
    });
    if keys {
        document["components"]["securitySchemes"] =
            json!({"key": {"type": "http", "scheme": "bearer"}});
    }
    bind(&mut document, limits);
    document
}

fn describe(route: Route, operation: Operation, keys: bool) -> Value {
    let mut responses = Map::new();
    let content: Map<String, Value> = operation
        .gives
        .into_iter()
        .map(|(form, schema)| (form.to_owned(), json!({ "schema": schema })))
        .collect();
    responses.insert(
        "200".into(),
        json!({"description": "Done", "headers": REQUEST_ID.reference(), "content": content}),
    );
    let open = route == Route::Health;
    let mut errors = operation.errors.to_vec();
    if keys && !open {
        errors.push(ErrorKind::Authentication);
    }
    if keys && route == Route::Metrics {
        errors.push(ErrorKind::Permission);
    }
    errors.extend([ErrorKind::MethodNotAllowed, ErrorKind::Misdirected]);
    errors.sort_by_key(|kind| kind.status());
    for kind in errors {
        let name = format!("#/components/responses/{kind:?}");
        responses.insert(kind.status().as_str().into(), json!({ "$ref": name }));
    }
    let mut described = json!({
        "summary": operation.summary,
        "operationId": format!("{route:?}"),
        "tags": [operation.tag],
        "responses": responses,
    });
    if operation.errors.contains(&ErrorKind::Deadline) {
        described["parameters"] = json!([{
            "name": "x-request-timeout", "in": "header", "schema": {"type": "number", "minimum": 0.001, "maximum": 86400},
            "description": "Seconds from the request's arrival until it ends with 408; the shorter of this and deadline_ms holds.",
        }]);
    }
    if let Some(schema) = operation.takes {
        described["requestBody"] =
            json!({"required": true, "content": {"application/json": {"schema": schema}}});
    }
    if route == Route::Model {
        described["parameters"] = json!([{
            "name": "model", "in": "path", "required": true, "schema": {"type": "string", "minLength": 1},
            "description": "The model's name; its slashes may be written as they are.",
        }]);
    }
    if keys && !open {
        described["security"] = json!([{"key": []}]);
    }
    described
}

struct Header(&'static str, &'static str);

const REQUEST_ID: Header = Header(
    "x-request-id",
    "The request's own id, or one that was made up for it.",
);
const RETRY_AFTER: Header = Header("retry-after", "Seconds after which to come back.");
const RETRY_AFTER_MS: Header = Header("retry-after-ms", "Milliseconds after which to come back.");

impl Header {
    fn reference(&self) -> Value {
        json!({ self.0: {"$ref": format!("#/components/headers/{}", self.0)} })
    }
}

fn headers() -> Value {
    let of =
        |Header(_, about): &Header| json!({"description": about, "schema": {"type": "string"}});
    [REQUEST_ID, RETRY_AFTER, RETRY_AFTER_MS]
        .iter()
        .map(|header| (header.0.to_owned(), of(header)))
        .collect::<Map<_, _>>()
        .into()
}

/// A response for every kind of error.
fn responses(error: &Value) -> Map<String, Value> {
    let of = |kind: &ErrorKind| {
        let mut headers = REQUEST_ID.reference();
        if matches!(kind, ErrorKind::Overloaded | ErrorKind::Unavailable) {
            for header in [RETRY_AFTER, RETRY_AFTER_MS] {
                headers[header.0] = header.reference()[header.0].take();
            }
        }
        let response = json!({
            "description": kind.about(),
            "headers": headers,
            "content": {"application/json": {"schema": error}},
        });
        (format!("{kind:?}"), response)
    };
    ErrorKind::ALL.iter().map(of).collect()
}

/// Sets what depends on the served model and the configuration, and adds the fields that only have a rule.
fn bind(document: &mut Value, limits: &Limits) {
    let schemas = &mut document["components"]["schemas"];
    schemas["TokenId"]["maximum"] = json!(limits.vocab_size.saturating_sub(1));
    schemas["Count"]["maximum"] = json!(limits.max_choices);
    for (name, endpoint) in [
        ("ChatCompletionRequest", Endpoint::Chat),
        ("CompletionRequest", Endpoint::Completions),
    ] {
        let properties = &mut schemas[name]["properties"];
        for field in ["min_tokens", "truncate_prompt_tokens"] {
            properties[field]["maximum"] = json!(limits.max_model_len);
        }
        if let Value::Object(properties) = properties {
            neutral::add(properties, endpoint);
        }
    }
}
