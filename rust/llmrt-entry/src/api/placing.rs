//! When and beside whom a request runs.

use std::time::Duration;

use super::Limits;
use super::error::{ApiError, ErrorKind};
use super::field;
use super::json::Json;

/// Longest `cache_salt`, bytes.
pub const MAX_SALT_BYTES: usize = 256;
/// Longest `deadline_ms`: a day.
pub const MAX_DEADLINE_MS: i64 = 86_400_000;

/// The fields about a request's place among others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placing {
    /// Lower runs first.
    pub priority: i32,
    /// Cached prefixes are shared only with requests of the same salt.
    pub cache_salt: String,
    /// Time from the request's arrival to the end of its answer.
    pub deadline: Option<Duration>,
}

impl Placing {
    /// Takes the field `name` when it is one of these; hands any other back.
    ///
    /// # Errors
    /// 400 when the value has the wrong type or lies outside its range, or when this server has one queue for all
    /// priorities.
    pub fn take<'a>(
        &mut self,
        name: &str,
        value: Json<'a>,
        limits: &Limits,
    ) -> Result<Option<Json<'a>>, ApiError> {
        let at = &name;
        match name {
            "priority" => {
                let range = i32::MIN.into()..=i32::MAX.into();
                self.priority = field::integer(at, &value, range)? as i32;
                if self.priority != 0 && !limits.priorities {
                    let reason = "has no effect on this server, which was not started with \
                                  `--schedule-policy priority`: leave it out or send 0";
                    return Err(field::invalid(at, reason).code("unsupported_parameter"));
                }
            }
            "cache_salt" => {
                let salt = field::string(at, value)?;
                if salt.len() > MAX_SALT_BYTES {
                    let reason = format_args!(
                        "has {} bytes; at most {MAX_SALT_BYTES} are allowed",
                        salt.len()
                    );
                    return Err(field::invalid(at, reason));
                }
                self.cache_salt = salt.into_owned();
            }
            "deadline_ms" => {
                let millis = field::integer(at, &value, 1..=MAX_DEADLINE_MS)?;
                self.deadline = Some(Duration::from_millis(millis.unsigned_abs()));
            }
            _ => return Ok(Some(value)),
        }
        Ok(None)
    }

    /// Sets a deadline that comes no later than `bound` after the request's arrival.
    pub fn bound(&mut self, bound: Duration) {
        self.deadline = Some(self.deadline.map_or(bound, |deadline| deadline.min(bound)));
    }

    /// What is left of the deadline of a request that arrived so long ago; `None` without one.
    ///
    /// # Errors
    /// 408 when nothing is.
    pub fn time_left(&self, elapsed: Duration) -> Result<Option<Duration>, ApiError> {
        let Some(deadline) = self.deadline else {
            return Ok(None);
        };
        match deadline.checked_sub(elapsed) {
            Some(left) if left >= Duration::from_millis(1) => Ok(Some(left)),
            _ => Err(self.too_late()),
        }
    }

    /// 408: the deadline passed.
    pub fn too_late(&self) -> ApiError {
        let millis = self.deadline.unwrap_or_default().as_millis();
        let message = format!(
            "The request was not answered within {millis} ms: its `deadline_ms`, its \
             `x-request-timeout` or the server's `--request-timeout`."
        );
        ApiError::new(ErrorKind::Deadline, message)
    }
}
