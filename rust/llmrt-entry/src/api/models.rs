//! `GET /v1/models` and `/v1/models/{id}`, and the check of `model` in requests.

use std::cell::Cell;

use bytes::Bytes;
use serde::Serialize;

use super::error::ApiError;
use super::response::to_bytes;

/// The names under which the one loaded model is served.
#[derive(Clone, Debug)]
pub struct Models {
    name: String,
    aliases: Vec<String>,
    created: u64,
    max_model_len: Cell<u32>,
}

#[derive(Serialize)]
struct Card<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    root: &'a str,
    parent: Option<()>,
    max_model_len: u32,
}

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Card<'a>>,
}

impl Models {
    /// A model of this `name`, also known by `aliases`; `created` in seconds since 1970.
    pub fn new(name: String, aliases: Vec<String>, created: u64, max_model_len: u32) -> Self {
        Self {
            name,
            aliases,
            created,
            max_model_len: Cell::new(max_model_len),
        }
    }

    /// The longest prompt plus answer is this many tokens from now on.
    pub fn set_max_model_len(&self, max_model_len: u32) {
        self.max_model_len.set(max_model_len);
    }

    /// The served name that a request means; a request that names none means the model itself.
    ///
    /// # Errors
    /// 404 with code `model_not_found` for any other name.
    pub fn resolve(&self, asked: Option<&str>) -> Result<&str, ApiError> {
        match asked {
            None => Ok(&self.name),
            Some(asked) => self
                .names()
                .find(|name| *name == asked)
                .ok_or_else(|| ApiError::model_not_found(asked)),
        }
    }

    /// Body of `GET /v1/models`.
    pub fn list(&self) -> Bytes {
        let data = self.names().map(|name| self.card(name)).collect();
        to_bytes(&List {
            object: "list",
            data,
        })
    }

    /// Body of `GET /v1/models/{id}`.
    ///
    /// # Errors
    /// 404 with code `model_not_found`.
    pub fn get(&self, id: &str) -> Result<Bytes, ApiError> {
        self.resolve(Some(id))
            .map(|name| to_bytes(&self.card(name)))
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.name)
            .chain(&self.aliases)
            .map(String::as_str)
    }

    fn card<'a>(&'a self, id: &'a str) -> Card<'a> {
        Card {
            id,
            object: "model",
            created: self.created,
            owned_by: "llmrt",
            root: &self.name,
            parent: None,
            max_model_len: self.max_model_len.get(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn models() -> Models {
        Models::new("smollm2".into(), vec!["default".into()], 7, 8192)
    }

    #[test]
    fn names_resolve_exactly() {
        let models = models();
        assert_eq!(models.resolve(None), Ok("smollm2"));
        assert_eq!(models.resolve(Some("default")), Ok("default"));
        for unknown in ["", "smollm", "SMOLLM2", "gpt-4"] {
            let error = models.resolve(Some(unknown)).unwrap_err();
            let body: serde_json::Value = serde_json::from_slice(&error.body()).unwrap();
            assert_eq!(error.status(), 404);
            assert_eq!(body["error"]["code"], "model_not_found");
            assert_eq!(body["error"]["param"], "model");
        }
    }

    #[test]
    fn cards() {
        let list: serde_json::Value = serde_json::from_slice(&models().list()).unwrap();
        assert_eq!(list["object"], "list");
        assert_eq!(list["data"][1]["id"], "default");
        assert_eq!(list["data"][1]["root"], "smollm2");
        let card: serde_json::Value =
            serde_json::from_slice(&models().get("smollm2").unwrap()).unwrap();
        assert_eq!(card, list["data"][0]);
        assert_eq!(card["max_model_len"], 8192);
        let shorter = models();
        shorter.set_max_model_len(625);
        let card: serde_json::Value =
            serde_json::from_slice(&shorter.get("default").unwrap()).unwrap();
        assert_eq!(card["max_model_len"], 625);
        assert!(models().get("other").is_err());
    }
}
