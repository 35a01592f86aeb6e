//! API keys: who may use the routes.

use std::rc::Rc;

use http::HeaderMap;
use http::header::AUTHORIZATION;

use super::routes::Route;
use crate::api::{ApiError, ErrorKind};
use crate::tenants::{Keys, Tenant};

/// Who sends the request. Decides by the route that was found, never by the text of a path.
///
/// # Errors
/// 401 when `route` asks for a key and the request bears none that is known; 403 when it is the key of somebody else
/// than an administrator and the route is theirs.
pub fn authorise(keys: &Keys, route: Route, headers: &HeaderMap) -> Result<Rc<Tenant>, ApiError> {
    let for_admins = route.is_for_admins() && keys.know_admins();
    if route == Route::Health || !(for_admins || keys.are_asked_for()) {
        return Ok(keys.anybody());
    }
    let token = bearer(headers).ok_or_else(|| {
        refusal("An API key is needed: send the header 'Authorization: Bearer KEY'.")
    })?;
    match keys.holder(token) {
        None => Err(refusal("The API key is wrong.")),
        Some(holder) if for_admins && !holder.is_admin => Err(ApiError::new(
            ErrorKind::Permission,
            "This route is for the keys of --admin-api-key.",
        )),
        Some(holder) => Ok(holder.tenant),
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

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use serde_json::json;

    use super::*;
    use crate::config::EntryConfig;
    use crate::tests::rig::{Scratch, config};

    fn keys(keys: &[&str], admins: &[&str]) -> Keys {
        let mut config = config(&Scratch::new(), json!({}));
        config["api_keys"] = json!(keys);
        config["admin_api_keys"] = json!(admins);
        let config = EntryConfig::from_json(&config.to_string()).unwrap();
        Keys::load(config.keys()).unwrap()
    }

    fn status(keys: &Keys, route: Route, header: Option<&[u8]>) -> Option<u16> {
        let mut headers = HeaderMap::new();
        if let Some(value) = header {
            headers.insert(AUTHORIZATION, HeaderValue::from_bytes(value).unwrap());
        }
        authorise(keys, route, &headers)
            .err()
            .map(|refusal| refusal.status().as_u16())
    }

    #[test]
    fn without_keys_everything_is_open() {
        let none = keys(&[], &[]);
        assert_eq!(status(&none, Route::Completions, None), None);
        assert_eq!(status(&none, Route::Metrics, None), None);
    }

    #[test]
    fn a_key_opens_and_nothing_else_does() {
        let keys = keys(&["first-key", "second-key"], &[]);
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
        let keys = keys(&["k"], &[]);
        assert_eq!(status(&keys, Route::Health, None), None);
        for route in [
            Route::HealthGenerate,
            Route::Ready,
            Route::Metrics,
            Route::Version,
            Route::Tokenize,
        ] {
            assert_eq!(status(&keys, route, None), Some(401));
        }
    }

    #[test]
    fn the_key_of_an_administrator_opens_all_and_closes_the_counts_to_others() {
        let (user, root) = (Some(&b"Bearer user"[..]), Some(&b"Bearer root"[..]));
        let both = keys(&["user"], &["root"]);
        for route in [Route::Metrics, Route::Completions] {
            assert_eq!(status(&both, route, root), None);
            assert_eq!(status(&both, route, None), Some(401));
        }
        assert_eq!(status(&both, Route::Metrics, user), Some(403));
        assert_eq!(status(&both, Route::Completions, user), None);
        let alone = keys(&[], &["root"]);
        assert_eq!(status(&alone, Route::Completions, None), None);
        assert_eq!(status(&alone, Route::Metrics, None), Some(401));
        assert_eq!(status(&alone, Route::Metrics, root), None);
    }
}
