//! Which routes exist and which method each takes.

use http::Method;

/// A route that the worker answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    ChatCompletions,
    Completions,
    Models,
    Model,
    Tokenize,
    Detokenize,
    Health,
    HealthGenerate,
    Ready,
    Version,
    Metrics,
    OpenApi,
    Docs,
}

impl Route {
    /// Whether its answer depends on the core being up.
    pub fn needs_core(self) -> bool {
        use Route::{ChatCompletions, Completions, HealthGenerate, Ready};
        matches!(self, ChatCompletions | Completions | HealthGenerate | Ready)
    }

    /// Whether it is for administrators, where there are any: it tells of everybody's requests.
    pub fn is_for_admins(self) -> bool {
        self == Self::Metrics
    }
}

const TABLE: &[(&str, Method, Route)] = &[
    ("/v1/chat/completions", Method::POST, Route::ChatCompletions),
    ("/v1/completions", Method::POST, Route::Completions),
    ("/v1/models", Method::GET, Route::Models),
    // Names of models may hold slashes.
    ("/v1/models/{*model}", Method::GET, Route::Model),
    ("/tokenize", Method::POST, Route::Tokenize),
    ("/detokenize", Method::POST, Route::Detokenize),
    ("/health", Method::GET, Route::Health),
    ("/health_generate", Method::GET, Route::HealthGenerate),
    ("/ready", Method::GET, Route::Ready),
    ("/version", Method::GET, Route::Version),
    ("/metrics", Method::GET, Route::Metrics),
    ("/openapi.json", Method::GET, Route::OpenApi),
    ("/docs", Method::GET, Route::Docs),
];

/// Every route: its path, its method, its name.
pub fn table() -> &'static [(&'static str, Method, Route)] {
    TABLE
}

/// What a method and a path lead to.
#[derive(Debug, PartialEq, Eq)]
pub enum Found<'p> {
    /// A route, and the value of its parameter where it has one.
    Route(Route, Option<&'p str>),
    /// The path exists, for other methods: the value of `Allow`.
    Method(&'static str),
    Nothing,
}

/// The route table, compiled.
pub struct Routes(matchit::Router<(Method, Route)>);

impl Routes {
    /// # Errors
    /// Two rows of the table contradict each other.
    pub fn new() -> Result<Self, matchit::InsertError> {
        let mut router = matchit::Router::new();
        for (path, method, route) in TABLE {
            router.insert(*path, (method.clone(), *route))?;
        }
        Ok(Self(router))
    }

    pub fn find<'p>(&self, method: &Method, path: &'p str) -> Found<'p> {
        let Ok(found) = self.0.at(path) else {
            return Found::Nothing;
        };
        let (wanted, route) = found.value;
        let fits = method == wanted || (method == Method::HEAD && wanted == Method::GET);
        match (fits, wanted == Method::GET) {
            (true, _) => Found::Route(*route, found.params.get("model")),
            (false, true) => Found::Method("GET, HEAD"),
            (false, false) => Found::Method("POST"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_methods_are_told_apart() {
        let routes = Routes::new().unwrap();
        let find = |method: Method, path: &'static str| routes.find(&method, path);
        assert_eq!(
            find(Method::POST, "/v1/completions"),
            Found::Route(Route::Completions, None)
        );
        assert_eq!(
            find(Method::HEAD, "/health"),
            Found::Route(Route::Health, None)
        );
        assert_eq!(
            find(Method::GET, "/v1/models/org/name"),
            Found::Route(Route::Model, Some("org/name"))
        );
        assert_eq!(find(Method::GET, "/v1/completions"), Found::Method("POST"));
        assert_eq!(find(Method::POST, "/metrics"), Found::Method("GET, HEAD"));
        assert_eq!(find(Method::HEAD, "/tokenize"), Found::Method("POST"));
        for unknown in ["/", "/v1", "/v1/completions/", "//health", "/v1/models/"] {
            assert_eq!(find(Method::GET, unknown), Found::Nothing, "{unknown}");
        }
    }
}
