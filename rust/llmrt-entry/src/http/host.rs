//! Which host a request is for.
//!
//! A page that a browser shows may be told by its own name server that its name is this machine's (DNS rebinding). Its
//! requests still name that host, so that a server on the loopback interface knows them.

use std::net::IpAddr;

use http::header::HOST;
use http::uri::Authority;
use http::{Request, Version};

use crate::api::{ApiError, ErrorKind, quote};

/// The hosts that requests may name.
pub struct Hosts(Option<Vec<String>>);

impl Hosts {
    /// Names beside the loopback ones; `None` takes any.
    pub fn new(allowed: Option<&[String]>) -> Self {
        let any = allowed.is_none_or(|names| names.iter().any(|name| name == "*"));
        Self((!any).then(|| allowed.unwrap_or_default().to_vec()))
    }

    /// HTTP/1.1 (RFC 9112, section 3.2) asks for exactly one `Host`, and HTTP/2 (RFC 9113, section 8.3.1) for none that
    /// differs from `:authority`: a proxy before us might take another than we do.
    ///
    /// # Errors
    /// 400 for a host that is missing, repeated or contradicted, 421 for one that is not served here.
    pub fn check<B>(&self, request: &Request<B>) -> Result<(), ApiError> {
        let host = host_of(request)?;
        let (Some(names), Some(host)) = (&self.0, host) else {
            return Ok(());
        };
        let Ok(authority) = Authority::try_from(host) else {
            return Err(ApiError::invalid("The Host header is malformed."));
        };
        let name = authority.host();
        if is_loopback(name) || names.iter().any(|pattern| fits(pattern, name)) {
            return Ok(());
        }
        let message = format!(
            "The host {} is not served here; the server takes it with --allowed-hosts.",
            quote(name)
        );
        Err(ApiError::new(ErrorKind::Misdirected, message))
    }
}

/// The host, with its port, that a request names; HTTP/1.0 need not name one.
///
/// # Errors
/// 400 where it is missing, repeated or contradicted.
fn host_of<B>(request: &Request<B>) -> Result<Option<&str>, ApiError> {
    let multiplexed = request.version() >= Version::HTTP_2;
    let mut named = request.headers().get_all(HOST).iter();
    let header = match (named.next(), named.next()) {
        (None, _) if request.version() == Version::HTTP_11 => {
            return Err(ApiError::invalid("The request has no Host header."));
        }
        (header, None) => header,
        _ => {
            let message = "The request has more than one Host header.";
            return Err(ApiError::invalid(message));
        }
    };
    let header = header.map(|value| value.to_str()).transpose();
    let header = header.map_err(|_| ApiError::invalid("The Host header is malformed."))?;
    let authority = request.uri().authority().map(Authority::as_str);
    match (authority, header) {
        (Some(authority), Some(header))
            if multiplexed && !authority.eq_ignore_ascii_case(header) =>
        {
            let message = "The Host header differs from :authority.";
            Err(ApiError::invalid(message))
        }
        // An absolute target counts, whatever the header says (RFC 9112, section 3.2.2).
        (Some(authority), _) => Ok(Some(authority)),
        (None, header) => Ok(header),
    }
}

/// Whether a name stands for this machine wherever it is asked: no name server can give it to a page.
fn is_loopback(name: &str) -> bool {
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_prefix('*') {
        // `.example.com` is left of `*.example.com`.
        Some(suffix) => name
            .len()
            .checked_sub(suffix.len())
            .filter(|cut| *cut > 0)
            .and_then(|cut| name.get(cut..))
            .is_some_and(|end| end.eq_ignore_ascii_case(suffix)),
        None => pattern.eq_ignore_ascii_case(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(allowed: Option<&[&str]>, version: Version, uri: &str, hosts: &[&str]) -> u16 {
        let allowed: Option<Vec<String>> =
            allowed.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
        let mut request = Request::builder().version(version).uri(uri);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        let checked = Hosts::new(allowed.as_deref()).check(&request.body(()).unwrap());
        checked.map_or_else(|refusal| refusal.status().as_u16(), |()| 200)
    }

    #[test]
    fn loopback_names_are_served_and_foreign_ones_are_not() {
        let allowed = Some(&["api.example", "*.wild.example"][..]);
        for (host, status) in [
            ("localhost", 200),
            ("LOCALHOST:8000", 200),
            ("127.0.0.1:8000", 200),
            ("127.8.9.1", 200),
            ("[::1]:8000", 200),
            ("api.example:99", 200),
            ("API.EXAMPLE", 200),
            ("a.b.wild.example", 200),
            ("wild.example", 421),
            (".wild.example", 421),
            ("evil.example", 421),
            ("localhost.evil.example", 421),
            ("127.0.0.1.evil.example", 421),
            ("xapi.example", 421),
            ("10.0.0.1", 421),
            ("a b", 400),
            ("", 400),
        ] {
            let got = check(allowed, Version::HTTP_11, "/", &[host]);
            assert_eq!(got, status, "{host:?}");
        }
    }

    #[test]
    fn any_host_will_do_unless_asked_otherwise() {
        for allowed in [None, Some(&["*"][..])] {
            assert_eq!(check(allowed, Version::HTTP_11, "/", &["x.example"]), 200);
        }
        assert_eq!(check(Some(&[]), Version::HTTP_11, "/", &["x.example"]), 421);
    }

    #[test]
    fn one_host_and_no_contradiction() {
        let any = None;
        assert_eq!(check(any, Version::HTTP_11, "/", &[]), 400);
        assert_eq!(check(any, Version::HTTP_11, "/", &["a", "a"]), 400);
        assert_eq!(check(any, Version::HTTP_10, "/", &[]), 200);
        assert_eq!(check(any, Version::HTTP_2, "http://a/", &[]), 200);
        assert_eq!(check(any, Version::HTTP_2, "http://a/", &["A"]), 200);
        assert_eq!(check(any, Version::HTTP_2, "http://a/", &["b"]), 400);
        assert_eq!(check(any, Version::HTTP_2, "http://a/", &["a", "a"]), 400);
        // The target's host counts on HTTP/1.1 too.
        assert_eq!(
            check(Some(&[]), Version::HTTP_11, "http://evil/", &["localhost"]),
            421
        );
        assert_eq!(
            check(Some(&[]), Version::HTTP_11, "http://localhost/", &["evil"]),
            200
        );
    }
}
