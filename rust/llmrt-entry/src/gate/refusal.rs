//! Why a request is not let in.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::api::{ApiError, ErrorKind};
use crate::metrics::{Metrics, Rejection};

/// The answer to a request that is not let in, and what it counts as.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// None for what is too late: that is no rejection.
    pub why: Option<Rejection>,
    pub error: ApiError,
}

impl Refusal {
    /// For makers of errors: what they make counts as `why`.
    pub fn of(why: Rejection) -> impl Fn(ApiError) -> Self {
        move |error| Self {
            why: Some(why),
            error,
        }
    }

    /// Of a request that cannot make it any more.
    pub fn too_late() -> Self {
        let message = "The request could not be answered before its deadline any more.";
        Self {
            why: None,
            error: ApiError::new(ErrorKind::Deadline, message),
        }
    }

    /// Counts it; what is left is for the client.
    pub fn count(self, metrics: &Metrics) -> ApiError {
        if let Some(why) = self.why {
            metrics.rejected(why);
        }
        self.error
    }
}

/// A [`Refusal`] on its way between processes.
#[derive(Debug, Serialize, Deserialize)]
pub struct Told {
    why: Option<Rejection>,
    status: u16,
    message: String,
    param: Option<String>,
    retry_ms: Option<u64>,
}

impl From<&Refusal> for Told {
    fn from(refusal: &Refusal) -> Self {
        let Refusal { why, error } = refusal;
        Self {
            why: *why,
            status: error.status().as_u16(),
            message: error.message().to_owned(),
            param: error.field().map(str::to_owned),
            retry_ms: error.wait().map(|wait| wait.as_millis() as u64),
        }
    }
}

impl From<Told> for Refusal {
    fn from(told: Told) -> Self {
        let mut error = ApiError::from_status(told.status, &told.message);
        if let Some(param) = told.param {
            error = error.param(param);
        }
        if let Some(millis) = told.retry_ms {
            error = error.retry_after(Duration::from_millis(millis));
        }
        let why = told.why;
        Self { why, error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_survives_the_way() {
        let full = ApiError::overloaded("full").retry_after(Duration::from_millis(1234));
        for refusal in [
            Refusal::of(Rejection::QueuedTokens)(full),
            Refusal::of(Rejection::Key)(ApiError::invalid("too many").param("n")),
            Refusal::too_late(),
        ] {
            let json = serde_json::to_string(&Told::from(&refusal)).unwrap();
            let told: Told = serde_json::from_str(&json).unwrap();
            assert_eq!(Refusal::from(told), refusal);
        }
    }
}
