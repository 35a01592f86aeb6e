//! Schemas of the fields that have no type of their own, but a rule of which values pass.

use serde_json::{Map, Value, json};

use crate::api::Endpoint;
use crate::api::rules::{Neutral, RULES};

/// Adds the fields of `endpoint` that only have a rule.
pub fn add(properties: &mut Map<String, Value>, endpoint: Endpoint) {
    for (name, of, neutral) in RULES {
        if of.is_none_or(|of| of == endpoint) && !properties.contains_key(*name) {
            properties.insert((*name).to_owned(), schema(*neutral));
        }
    }
}

fn schema(neutral: Neutral) -> Value {
    let mut schema = match neutral {
        Neutral::Any => return json!({"description": "Accepted without effect."}),
        Neutral::Nothing => json!({"type": "null"}),
        Neutral::Bool(value) => json!({"enum": [value, null]}),
        Neutral::Number(value) => json!({"enum": [value, null]}),
        Neutral::Text(value) => json!({"enum": [value, null]}),
        Neutral::Empty => json!({
            "type": ["array", "object", "string", "null"], "maxItems": 0, "maxProperties": 0, "maxLength": 0,
        }),
        Neutral::TextOnly => json!({"enum": [["text"], null]}),
        Neutral::TypeText => json!({
            "type": ["object", "null"], "required": ["type"], "properties": {"type": {"const": "text"}},
        }),
    };
    schema["description"] = "Not supported: only values that ask for nothing pass.".into();
    schema
}
