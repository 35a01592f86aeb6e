//! API keys: who may use the routes.

use http::HeaderMap;
use http::header::AUTHORIZATION;
use subtle::ConstantTimeEq;

use super::routes::Route;
use crate::api::{ApiError, ErrorKind};

/// Decides by the route that was found, never by the text of a path.
///
/// # Errors
/// 401 when `keys` are set, `route` is not the health check, and the request bears none of them.
pub fn authorise(keys: &[String], route: Route, headers: &HeaderMap) -> Result<(), ApiError> {
    if keys.is_empty() || route == Route::Health {
        return Ok(());
    }
    match bearer(headers) {
        Some(token) if is_one_of(keys, token) => Ok(()),
        Some(_) => Err(refusal("The API key is wrong.")),
        None => Err(refusal(
            "An API key is needed: send the header 'Authorization: Bearer KEY'.",
        )),
    }
}

fn refusal(message: &str) -> ApiError {
    ApiError::new(ErrorKind::Authentication, message)
}

/// The token of `Authorization: Bearer TOKEN` (RFC 6750); the scheme's case does not matter.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}

/// Compares with every key, so that the time taken tells nothing of where, or with which, a token differs.
fn is_one_of(keys: &[String], token: &[u8]) -> bool {
    keys.iter()
        .fold(subtle::Choice::from(0), |found, key| {
            found | key.as_bytes().ct_eq(token)
        })
        .into()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn status(keys: &[&str], route: Route, header: Option<&[u8]>) -> Option<u16> {
        let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        let mut headers = HeaderMap::new();
        if let Some(value) = header {
            headers.insert(AUTHORIZATION, HeaderValue::from_bytes(value).unwrap());
        }
        authorise(&keys, route, &headers)
            .err()
            .map(|refusal| refusal.status().as_u16())
    }

    #[test]
    fn without_keys_everything_is_open() {
        assert_eq!(status(&[], Route::Completions, None), None);
    }

    #[test]
    fn a_key_opens_and_nothing_else_does() {
        let keys = ["first-key", "second-key"];
        for good in [&b"Bearer first-key"[..], b"bearer second-key"] {
            assert_eq!(status(&keys, Route::Models, Some(good)), None);
        }
        for bad in [
            None,
            Some(&b""[..]),
            Some(b"Bearer"),
            Some(b"Bearer "),
            Some(b"Bearer first-ke"),
            Some(b"Bearer first-key "),
            Some(b"Basic first-key"),
            Some("Bearer schlüssel".as_bytes()),
            Some(b"Bearer \xff\xfe"),
        ] {
            assert_eq!(status(&keys, Route::Models, bad), Some(401), "{bad:?}");
        }
    }

    #[test]
    fn health_needs_no_key_and_everything_else_does() {
        assert_eq!(status(&["k"], Route::Health, None), None);
        for route in [
            Route::HealthGenerate,
            Route::Ready,
            Route::Metrics,
            Route::Version,
            Route::Tokenize,
        ] {
            assert_eq!(status(&["k"], route, None), Some(401));
        }
    }
}
