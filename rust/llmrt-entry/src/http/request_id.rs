//! The id that a request carries through answers and logs.

use std::cell::Cell;
use std::rc::Rc;

use http::{HeaderMap, HeaderName};
use llmrt_link::Identity;

pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_LEN: usize = 128;

/// Takes a client's own id, or makes one.
pub struct RequestIds {
    /// Random per start, so that ids of two starts differ.
    prefix: u64,
    made: Cell<u64>,
}

impl RequestIds {
    pub fn new() -> Self {
        Self {
            prefix: Identity::draw(),
            made: Cell::new(0),
        }
    }

    /// The id of the request with `headers`: always 1 to 128 visible ASCII characters.
    pub fn of(&self, headers: &HeaderMap) -> Rc<str> {
        let own = headers
            .get(X_REQUEST_ID)
            .and_then(|value| value.to_str().ok());
        match own {
            Some(id) if sane(id) => id.into(),
            _ => {
                let number = self.made.get();
                self.made.set(number + 1);
                format!("req-{:016x}", self.prefix.wrapping_add(number)).into()
            }
        }
    }
}

fn sane(id: &str) -> bool {
    !id.is_empty() && id.len() <= MAX_LEN && id.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn own_ids_are_kept_when_they_are_sane() {
        let ids = RequestIds::new();
        let of = |value: &[u8]| {
            ids.of(&HeaderMap::from_iter([(
                X_REQUEST_ID,
                HeaderValue::from_bytes(value).unwrap(),
            )]))
        };
        assert_eq!(&*of(b"trace-7"), "trace-7");
        assert_eq!(&*of(&[b'a'; 128]), "a".repeat(128));
        for foreign in [&b""[..], b"two words", &[b'a'; 129], "\u{e9}".as_bytes()] {
            assert!(of(foreign).starts_with("req-"));
        }
        assert_ne!(ids.of(&HeaderMap::new()), ids.of(&HeaderMap::new()));
    }
}
