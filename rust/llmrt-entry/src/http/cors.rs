//! What pages of other origins may do: the CORS protocol of the Fetch standard.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, HOST, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};

use super::response::{Body, Response};
use crate::api::{ApiError, ErrorKind, quote};
use crate::config;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Header fields of answers that pages may read beside the simple ones.
const EXPOSED: HeaderValue = HeaderValue::from_static("x-request-id, retry-after, retry-after-ms");
/// Seconds that a browser may remember a preflight.
const REMEMBERED: HeaderValue = HeaderValue::from_static("600");

/// The rules for pages of other origins.
pub struct Cors {
    any: bool,
    origins: Vec<String>,
    methods: Option<HeaderValue>,
    headers: Option<HeaderValue>,
    credentials: bool,
}

/// What the origin of a request means.
#[derive(Debug, PartialEq)]
pub enum Origin {
    /// No page of another origin sent it.
    Own,
    /// Its page may read the answer.
    Allowed(HeaderValue),
    /// Its page may not.
    Foreign,
}

impl Cors {
    pub fn new(config: &config::Cors) -> Self {
        let list = |names: &[String]| {
            let some = !(names.is_empty() || names.iter().any(|name| name == config::Cors::ANY));
            // The configuration was checked; what cannot stand in a header would allow nothing.
            some.then(|| {
                HeaderValue::from_str(&names.join(", ")).unwrap_or(HeaderValue::from_static(""))
            })
        };
        Self {
            any: config.any(),
            origins: config.origins.clone(),
            methods: list(&config.methods),
            headers: list(&config.headers),
            credentials: config.credentials,
        }
    }

    /// Tells where a request came from.
    pub fn origin<B>(&self, request: &Request<B>) -> Origin {
        let headers = request.headers();
        let Some(origin) = headers.get(ORIGIN) else {
            return Origin::Own;
        };
        let listed = |name: &String| name.as_bytes().eq_ignore_ascii_case(origin.as_bytes());
        if self.any || self.origins.iter().any(listed) {
            return Origin::Allowed(origin.clone());
        }
        // Behind a proxy a page's own server has another name for us than for it; the browser knows.
        let own = headers
            .get(SEC_FETCH_SITE)
            .is_some_and(|site| site == "same-origin");
        if own || same_host(origin, request) {
            return Origin::Own;
        }
        Origin::Foreign
    }

    /// Whether a request may be answered, and the answer where it is a preflight.
    ///
    /// # Errors
    /// 403 for a request of a foreign page that could change anything: the browser only keeps its answer from the page.
    pub fn admit<B>(
        &self,
        request: &Request<B>,
        origin: &Origin,
    ) -> Result<Option<Response>, ApiError> {
        let headers = request.headers();
        let preflight = request.method() == Method::OPTIONS
            && headers.contains_key(ORIGIN)
            && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
        if *origin == Origin::Foreign {
            if matches!(*request.method(), Method::GET | Method::HEAD) {
                return Ok(None);
            }
            let origin = String::from_utf8_lossy(headers[ORIGIN].as_bytes());
            let message = format!(
                "Pages of {} may not use this server; it lets them with --allowed-origins.",
                quote(&origin)
            );
            return Err(ApiError::new(ErrorKind::Permission, message).code("origin_not_allowed"));
        }
        Ok(preflight.then(|| self.preflight(headers)))
    }

    fn preflight(&self, asked: &HeaderMap) -> Response {
        let mut response = Response::new(Body::from(""));
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        for (allow, rule, ask) in [
            (
                ACCESS_CONTROL_ALLOW_METHODS,
                &self.methods,
                ACCESS_CONTROL_REQUEST_METHOD,
            ),
            (
                ACCESS_CONTROL_ALLOW_HEADERS,
                &self.headers,
                ACCESS_CONTROL_REQUEST_HEADERS,
            ),
        ] {
            if let Some(value) = rule.as_ref().or(asked.get(ask)) {
                headers.insert(allow, value.clone());
            }
        }
        headers.insert(ACCESS_CONTROL_MAX_AGE, REMEMBERED);
        response
    }

    /// Adds what lets the page of `origin` read the answer.
    pub fn finish(&self, origin: Origin, headers: &mut HeaderMap) {
        if let Origin::Allowed(origin) = origin {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
            if self.credentials {
                headers.insert(
                    ACCESS_CONTROL_ALLOW_CREDENTIALS,
                    HeaderValue::from_static("true"),
                );
            }
        }
        if !self.origins.is_empty() {
            headers.append(VARY, HeaderValue::from_static("origin"));
        }
    }
}

/// Whether a page comes from the very host that its request is for.
fn same_host<B>(origin: &HeaderValue, request: &Request<B>) -> bool {
    let Some((_, page)) = origin.to_str().ok().and_then(|text| text.split_once("://")) else {
        return false;
    };
    let host = match request.uri().authority() {
        Some(authority) => authority.as_str(),
        None => request
            .headers()
            .get(HOST)
            .map_or("", |host| host.to_str().unwrap_or("")),
    };
    page.eq_ignore_ascii_case(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cors(origins: &[&str]) -> Cors {
        let origins = origins.iter().map(|name| (*name).to_owned()).collect();
        Cors::new(&config::Cors {
            origins,
            ..Default::default()
        })
    }

    fn request(method: Method, headers: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder()
            .method(method)
            .uri("/")
            .header(HOST, "me:8000");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    #[test]
    fn origins_are_told_apart() {
        let page = "https://chat.example";
        let origin = |rules: &[&str], headers: &[(&str, &str)]| {
            cors(rules).origin(&request(Method::POST, headers))
        };
        let allowed = Origin::Allowed(HeaderValue::from_static("https://chat.example"));
        assert_eq!(origin(&[], &[]), Origin::Own);
        assert_eq!(origin(&[page], &[("origin", page)]), allowed);
        assert_eq!(origin(&["*"], &[("origin", page)]), allowed);
        for foreign in [
            "https://chat.example.evil",
            "http://chat.example",
            "null",
            "",
        ] {
            assert_eq!(
                origin(&[page], &[("origin", foreign)]),
                Origin::Foreign,
                "{foreign}"
            );
        }
        assert_eq!(origin(&[], &[("origin", "http://me:8000")]), Origin::Own);
        assert_eq!(
            origin(&[], &[("origin", "http://me:8001")]),
            Origin::Foreign
        );
        let proxied = [("origin", page), ("sec-fetch-site", "same-origin")];
        assert_eq!(origin(&[], &proxied), Origin::Own);
        let crossed = [("origin", page), ("sec-fetch-site", "cross-site")];
        assert_eq!(origin(&[], &crossed), Origin::Foreign);
    }

    #[test]
    fn foreign_pages_may_look_but_not_act() {
        let rules = cors(&[]);
        for (method, refused) in [
            (Method::GET, false),
            (Method::HEAD, false),
            (Method::POST, true),
            (Method::OPTIONS, true),
        ] {
            let request = request(method.clone(), &[("origin", "http://evil.example")]);
            let admitted = rules.admit(&request, &rules.origin(&request));
            assert_eq!(admitted.is_err(), refused, "{method}");
        }
    }

    #[test]
    fn a_preflight_allows_what_is_asked_for_or_what_is_configured() {
        let ask = request(
            Method::OPTIONS,
            &[
                ("origin", "http://page.example"),
                ("access-control-request-method", "POST"),
                (
                    "access-control-request-headers",
                    "authorization, content-type",
                ),
            ],
        );
        let answer = |config: &config::Cors| {
            let rules = Cors::new(config);
            let origin = rules.origin(&ask);
            let mut response = rules.admit(&ask, &origin).unwrap().unwrap();
            rules.finish(origin, response.headers_mut());
            response
        };
        let mut config = config::Cors {
            origins: vec!["http://page.example".to_owned()],
            ..Default::default()
        };
        let open = answer(&config);
        assert_eq!(open.status(), 204);
        let headers = open.headers();
        assert_eq!(
            headers["access-control-allow-origin"],
            "http://page.example"
        );
        assert_eq!(headers["access-control-allow-methods"], "POST");
        assert_eq!(
            headers["access-control-allow-headers"],
            "authorization, content-type"
        );
        assert_eq!(headers["vary"], "origin");
        assert!(!headers.contains_key("access-control-allow-credentials"));
        config.methods = vec!["GET".to_owned(), "POST".to_owned()];
        config.headers = vec!["authorization".to_owned()];
        config.credentials = true;
        let closed = answer(&config);
        assert_eq!(
            closed.headers()["access-control-allow-methods"],
            "GET, POST"
        );
        assert_eq!(
            closed.headers()["access-control-allow-headers"],
            "authorization"
        );
        assert_eq!(closed.headers()["access-control-allow-credentials"], "true");
    }
}
