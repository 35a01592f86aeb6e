//! The document says what the parser takes and what answers have, and is complete in itself.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::document;
use crate::api::rules::RULES;
use crate::api::{ApiError, ChatRequest, CompletionRequest, Endpoint, Limits};
use crate::http::table;

const REQUESTS: [(Endpoint, &str); 2] = [
    (Endpoint::Chat, "ChatCompletionRequest"),
    (Endpoint::Completions, "CompletionRequest"),
];

fn limits() -> Limits {
    Limits {
        max_model_len: 100,
        vocab_size: 50,
        max_choices: 8,
        priorities: true,
        defaults: Default::default(),
    }
}

fn properties<'d>(document: &'d Value, schema: &str) -> &'d Map<String, Value> {
    document["components"]["schemas"][schema]["properties"]
        .as_object()
        .unwrap()
}

/// Parses a sound body with one more field; gives the fields that the parser does not know.
fn parse(endpoint: Endpoint, name: &str, value: Value) -> Result<Vec<String>, ApiError> {
    let mut body = match endpoint {
        Endpoint::Chat => json!({"messages": [{"role": "user", "content": "hi"}]}),
        Endpoint::Completions => json!({"prompt": "hi"}),
    };
    body[name] = value;
    let body = body.to_string();
    let options = match endpoint {
        Endpoint::Chat => ChatRequest::parse(body.as_bytes(), &limits())?.options,
        Endpoint::Completions => CompletionRequest::parse(body.as_bytes(), &limits())?.options,
    };
    Ok(options.unknown)
}

#[test]
fn every_field_of_the_document_is_known_to_the_parser() {
    let document = document(&limits(), false);
    for (endpoint, schema) in REQUESTS {
        for name in properties(&document, schema).keys() {
            let unknown = parse(endpoint, name, json!({"no": "value of this field"}));
            assert_eq!(unknown.unwrap_or_default(), [""; 0], "{name}");
        }
    }
}

#[test]
fn every_rule_and_every_documented_field_is_in_the_document() {
    let document = document(&limits(), false);
    let chat = properties(&document, "ChatCompletionRequest");
    let completion = properties(&document, "CompletionRequest");
    for (name, endpoint, _) in RULES {
        assert!(
            endpoint == &Some(Endpoint::Completions) || chat.contains_key(*name),
            "{name}"
        );
        assert!(
            endpoint == &Some(Endpoint::Chat) || completion.contains_key(*name),
            "{name}"
        );
    }
    let guide = include_str!("../../../../docs/api.md");
    let (_, tables) = guide.split_once("## Request fields").unwrap();
    let (tables, _) = tables.split_once("\n## ").unwrap();
    let rows = tables.lines().filter(|line| line.starts_with("| `"));
    for row in rows {
        let names = row.split('|').nth(1).unwrap();
        for name in names.split('`').skip(1).step_by(2) {
            let plain = name.split(['.', '[']).next().unwrap();
            assert!(
                chat.contains_key(plain) || completion.contains_key(plain),
                "{name}"
            );
        }
    }
}

/// Values at the ends of every simple range that the document states, and just outside of them.
#[test]
fn the_parser_agrees_with_the_stated_ranges() {
    let document = document(&limits(), false);
    // These are bound to other fields, too.
    let alone = |name: &str| {
        ![
            "n",
            "best_of",
            "min_tokens",
            "top_logprobs",
            "max_tokens",
            "max_completion_tokens",
        ]
        .contains(&name)
    };
    let mut seen = 0;
    for (endpoint, schema) in REQUESTS {
        for (name, field) in properties(&document, schema)
            .iter()
            .filter(|(name, _)| alone(name))
        {
            for (bound, outside) in [("minimum", -1.0), ("maximum", 1.0)] {
                let Some(end) = field[bound].as_f64().filter(|end| end.abs() < 1e15) else {
                    continue;
                };
                seen += 1;
                let at = if field["type"].to_string().contains("integer") {
                    json!(end as i64)
                } else {
                    json!(end)
                };
                let beyond = json!(end + outside);
                assert!(parse(endpoint, name, at.clone()).is_ok(), "{name} {at}");
                let error = parse(endpoint, name, beyond.clone()).unwrap_err();
                assert_eq!(error.status(), 400, "{name} {beyond}");
            }
        }
    }
    assert!(seen > 20, "{seen} ends");
}

fn references<'d>(value: &'d Value, found: &mut BTreeSet<&'d str>) {
    match value {
        Value::Object(members) => {
            found.extend(members.get("$ref").and_then(Value::as_str));
            members
                .values()
                .for_each(|member| references(member, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

#[test]
fn every_reference_leads_somewhere_and_every_schema_is_used() {
    let document = document(&limits(), true);
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    for reference in &found {
        assert!(document.pointer(&reference[1..]).is_some(), "{reference}");
    }
    for name in document["components"]["schemas"]
        .as_object()
        .unwrap()
        .keys()
    {
        let reference = format!("#/components/schemas/{name}");
        assert!(found.contains(&*reference), "{name}");
    }
}

#[test]
fn limits_of_the_server_are_stated() {
    let document = document(&limits(), false);
    let schemas = &document["components"]["schemas"];
    assert_eq!(schemas["TokenId"]["maximum"], 49);
    assert_eq!(schemas["Count"]["maximum"], 8);
    assert_eq!(
        schemas["CompletionRequest"]["properties"]["min_tokens"]["maximum"],
        100
    );
    assert_eq!(document["components"].get("securitySchemes"), None);
}

#[test]
fn with_keys_every_route_but_health_says_so() {
    let document = document(&limits(), true);
    for (path, method, _) in table() {
        let path = path.replace("{*", "{");
        let operation = &document["paths"][&path][method.as_str().to_ascii_lowercase()];
        assert_eq!(
            operation.get("security").is_none(),
            path == "/health",
            "{path}"
        );
        assert_eq!(
            operation["responses"].get("401").is_none(),
            path == "/health",
            "{path}"
        );
    }
}

#[test]
fn the_page_shows_everything_and_needs_nothing() {
    let document = document(&limits(), true);
    let page = super::page::render(&document);
    for path in document["paths"].as_object().unwrap().keys() {
        assert!(
            page.contains(&format!("<code>{}</code>", path.replace('/', "&#x2f;"))),
            "{path}"
        );
    }
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        assert!(page.contains(&format!("<h3 id=\"{name}\">")), "{name}");
        for field in schema["properties"]
            .as_object()
            .into_iter()
            .flat_map(Map::keys)
        {
            assert!(
                page.contains(&format!("<code>{field}</code>")),
                "{name}.{field}"
            );
        }
    }
    for foreign in ["<script", "<link", "<img", "http:", "https:"] {
        assert!(!page.contains(foreign), "{foreign}");
    }
}
