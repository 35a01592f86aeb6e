//! `GET /v1/models` and `/v1/models/{id}`.

use std::borrow::Cow;

use http::StatusCode;

use crate::api::ApiError;
use crate::http::{Response, json};
use crate::shard::Shard;

/// All names of the served model.
pub fn list(shard: &Shard) -> Response {
    json(StatusCode::OK, shard.models.list())
}

/// One name; `id` as it stands in the path.
///
/// # Errors
/// 404 for a name that is not served.
pub fn get(shard: &Shard, id: &str) -> Result<Response, ApiError> {
    shard
        .models
        .get(&decoded(id))
        .map(|body| json(StatusCode::OK, body))
}

/// Undoes percent-encoding: clients write the slash of a name as `%2F`.
fn decoded(id: &str) -> Cow<'_, str> {
    if !id.contains('%') {
        return Cow::Borrowed(id);
    }
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let mut bytes = Vec::with_capacity(id.len());
    let mut rest = id.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let pair = tail
            .first()
            .and_then(digit)
            .zip(tail.get(1).and_then(digit));
        match (byte, pair) {
            (b'%', Some((high, low))) => {
                bytes.push((high * 16 + low) as u8);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::decoded;

    #[test]
    fn names_in_paths_are_decoded() {
        for (path, name) in [
            ("a/b", "a/b"),
            ("a%2Fb%2f", "a/b/"),
            ("%", "%"),
            ("%4", "%4"),
            ("%zz", "%zz"),
        ] {
            assert_eq!(decoded(path), name);
        }
        assert_eq!(decoded("%ff"), "\u{fffd}");
        assert_eq!(decoded("%C3%A9"), "é");
    }
}
