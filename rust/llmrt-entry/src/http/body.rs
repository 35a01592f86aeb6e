//! Reading a request's body, within a size and a time.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Version};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Incoming};
use hyper::rt::Executor;
use tokio::time::timeout;

use super::budget::{Held, Reservation};
use crate::api::json::check_content_type;
use crate::api::{ApiError, ErrorKind};
use crate::metrics::Rejection;
use crate::server::LocalExecutor;
use crate::shard::Shard;

/// Body of a request: from a connection, or from this process.
pub type RequestBody = Either<Incoming, Full<Bytes>>;

/// A body that is too big is still read to so many times its limit: a client that is cut off while it sends may
/// never see the answer.
const LINGER: usize = 2;

/// On HTTP/2 a body that nobody wants is waited for so long; then its stream ends, and with it nothing else.
const PAUSE: Duration = Duration::from_secs(1);

/// Reads a JSON body; its content is not looked at.
///
/// # Errors
/// 400 for another content type or encoding and for a body that breaks off, 408 when it is late, 413 when it is
/// too big, 429 when the bodies of all requests together are.
pub async fn read_json(
    shard: &Shard,
    head: &Parts,
    body: RequestBody,
) -> Result<Held<Bytes>, ApiError> {
    let limits = &shard.config.limits;
    if let Err(refusal) = check_type(&head.headers) {
        leave(shard, head, body);
        return Err(refusal);
    }
    let too_large = || {
        let message = format!(
            "The request body is larger than {} bytes.",
            limits.max_body_bytes
        );
        ApiError::new(ErrorKind::TooLarge, message)
    };
    let announced = body.size_hint().lower();
    if announced > limits.max_body_bytes as u64 {
        leave(shard, head, body);
        return Err(too_large());
    }
    let collected = collect(body, limits.max_body_bytes, shard.bodies.reserve());
    match timeout(limits.body_timeout(), collected).await {
        Ok(Ok(Collected::Whole(body))) => Ok(body),
        Ok(Ok(Collected::TooLarge)) => Err(too_large()),
        Ok(Ok(Collected::NoRoom)) => {
            shard.metrics.rejected(Rejection::Bodies);
            Err(ApiError::overloaded(
                "The bodies of other requests take all room; try again later.",
            ))
        }
        Ok(Err(_)) => Err(ApiError::invalid("The request body ended early.")),
        Err(_) => {
            let seconds = limits.body_timeout_s;
            let message = format!("The request body did not arrive within {seconds} s.");
            Err(ApiError::new(ErrorKind::Deadline, message))
        }
    }
}

/// Reads a body that nobody wants while its answer is on its way. Left alone it would end a connection of HTTP/1.1,
/// unless it had arrived by then, or the stream of HTTP/2, and clients that still send do not look for an answer then.
pub fn leave(shard: &Shard, head: &Parts, body: RequestBody) {
    // Who waits for `100 Continue` sends nothing, unless we read.
    if !body.is_end_stream() && !head.headers.contains_key(EXPECT) {
        let limits = &shard.config.limits;
        let patience = limits.body_timeout();
        let pause = match head.version {
            Version::HTTP_2 => PAUSE.min(patience),
            _ => patience,
        };
        let discarded = discard(body, LINGER * limits.max_body_bytes, pause);
        // What is late is cut off, as every late body is.
        LocalExecutor.execute(async move { drop(timeout(patience, discarded).await) });
    }
}

/// What became of a body.
enum Collected {
    Whole(Held<Bytes>),
    /// It is longer than its limit.
    TooLarge,
    /// It would be more than the budget has left.
    NoRoom,
}

/// Collects the body's bytes, at most `limit` and what `place` can take. What is refused is read all the same, and not
/// kept.
async fn collect(
    mut body: RequestBody,
    limit: usize,
    mut place: Reservation,
) -> Result<Collected, <RequestBody as Body>::Error> {
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    let mut total = 0;
    let mut refused = None;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        total += data.len();
        if total > limit {
            refused = Some(Collected::TooLarge);
            if total > LINGER * limit {
                break;
            }
        } else if refused.is_none() && !place.grow(data.len()) {
            refused = Some(Collected::NoRoom);
        }
        if refused.is_some() {
            (first, rest) = Default::default();
            place.clear();
        } else if first.is_empty() {
            first = data;
        } else {
            if rest.is_empty() {
                rest.extend_from_slice(&first);
            }
            rest.extend_from_slice(&data);
        }
    }
    if let Some(refused) = refused {
        return Ok(refused);
    }
    let value = if rest.is_empty() {
        first
    } else {
        rest.freeze()
    };
    Ok(Collected::Whole(Held { value, place }))
}

/// Reads up to `limit` bytes, none of which comes more than `pause` after the one before.
async fn discard(mut body: RequestBody, limit: usize, pause: Duration) {
    let mut total = 0;
    while total <= limit
        && let Ok(Some(Ok(frame))) = timeout(pause, body.frame()).await
    {
        total += frame.data_ref().map_or(0, Bytes::len);
    }
}

fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    if let Some(encoding) = headers.get(CONTENT_ENCODING)
        && encoding.as_bytes() != b"identity"
    {
        return Err(ApiError::invalid("Request bodies must not be compressed."));
    }
    check_content_type(headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(value))])
    }

    #[test]
    fn json_is_the_only_type() {
        for good in ["application/json", "Application/JSON; charset=utf-8"] {
            assert!(check_type(&typed(good)).is_ok(), "{good}");
        }
        assert!(check_type(&HeaderMap::new()).is_err());
        for bad in [
            "text/plain",
            "multipart/form-data; boundary=x",
            "application/jsonl",
            "",
        ] {
            assert!(check_type(&typed(bad)).is_err(), "{bad}");
        }
        let zipped = HeaderMap::from_iter([(CONTENT_ENCODING, HeaderValue::from_static("gzip"))]);
        assert!(check_type(&zipped).is_err());
    }
}
