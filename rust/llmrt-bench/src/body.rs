//! Bodies of requests, made before the run.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::config::{BenchConfig, Endpoint};
use crate::workload::{Item, Prompt};

/// The JSON body of a streamed request with usage at its end.
#[must_use]
pub fn body(config: &BenchConfig, model: &str, item: &Item) -> Bytes {
    let mut body = Map::new();
    body.insert("model".into(), model.into());
    let (name, prompt) = match (&item.prompt, config.endpoint) {
        (Prompt::Messages(messages), _) => ("messages", messages.clone()),
        (Prompt::Text(text), Endpoint::Chat) => {
            ("messages", json!([{"role": "user", "content": text}]))
        }
        (Prompt::Text(text), Endpoint::Completions) => ("prompt", text.as_str().into()),
        (Prompt::Ids(ids), _) => ("prompt", ids.as_slice().into()),
    };
    body.insert(name.into(), prompt);
    body.insert("max_tokens".into(), item.max_tokens.into());
    body.insert("stream".into(), true.into());
    body.insert("stream_options".into(), json!({"include_usage": true}));
    if config.ignore_eos {
        body.insert("ignore_eos".into(), true.into());
    }
    for (name, value) in &config.extra_body {
        body.insert(name.clone(), value.clone());
    }
    Value::Object(body).to_string().into()
}
