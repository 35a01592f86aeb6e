//! Bounds on what clients can make a worker hold or wait for.

use std::time::Duration;

use llmrt_link::Rule;
use serde::Deserialize;

use super::is_time;

/// Bounds on what clients can make the worker hold or wait for.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Largest request body, bytes; larger ones get 413.
    pub max_body_bytes: usize,
    /// Request bodies held at once until their prompts are tokens, bytes; requests beyond that get 429.
    pub max_bodies_bytes: usize,
    /// Seconds within which a request body must have arrived; later ones get 408.
    pub body_timeout_s: f64,
    /// Open connections; further ones wait in the kernel's queue.
    pub max_connections: usize,
    /// Generations admitted at once, running or queued; more get 429.
    pub max_requests: u32,
    /// Generations that the scheduler runs at once. Where several keys want more, the others wait for their turn here.
    pub max_running: u32,
    /// Prompt tokens that may wait for their first token; more get 429. 0: no bound.
    pub max_queued_tokens: u32,
    /// Seconds from a request's arrival to the end of its answer; 0: no bound.
    pub request_timeout_s: f64,
    /// Answers to one request at most, and no more than `max_requests`: `n` for each of its prompts.
    pub max_choices: u32,
    /// Size of a request's header fields, bytes.
    pub max_header_bytes: u32,
    /// Number of a request's header fields.
    pub max_headers: usize,
    /// Seconds within which a connection must have sent its HTTP/2 preface or the head of an HTTP/1.1 request.
    pub header_timeout_s: f64,
    /// Seconds that a connection is kept without a request.
    pub keep_alive_timeout_s: f64,
    /// Seconds after which a connection takes no new requests, give or take a tenth; 0: never.
    pub max_connection_age_s: f64,
    /// Concurrent streams of one HTTP/2 connection.
    pub max_concurrent_streams: u32,
    /// Text that may wait for a slow reader, bytes per response; four times as much ends the request at once.
    pub response_buffer_bytes: usize,
    /// Seconds that a response may stay above `response_buffer_bytes` before its request is aborted, and that a
    /// client may read nothing of what was sent before it is hung up on.
    pub stall_timeout_s: f64,
    /// Longest silence on a stream before a comment is sent, seconds; 0 sends none.
    pub ping_interval_s: f64,
    /// Seconds within which `/health_generate` must have its token.
    pub health_timeout_s: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_body_bytes: 16 << 20,
            max_bodies_bytes: 256 << 20,
            body_timeout_s: 30.0,
            max_connections: 8192,
            max_requests: 1088,
            max_running: 64,
            max_queued_tokens: 0,
            request_timeout_s: 0.0,
            max_choices: 128,
            max_header_bytes: 16 << 10,
            max_headers: 100,
            header_timeout_s: 10.0,
            keep_alive_timeout_s: 75.0,
            max_connection_age_s: 3600.0,
            max_concurrent_streams: 1024,
            response_buffer_bytes: 256 << 10,
            stall_timeout_s: 60.0,
            ping_interval_s: 15.0,
            health_timeout_s: 20.0,
        }
    }
}

impl Limits {
    pub(super) fn rules(&self) -> impl IntoIterator<Item = Rule> {
        [
            (
                self.max_bodies_bytes >= self.max_body_bytes,
                "limits.max_bodies_bytes",
                "at least limits.max_body_bytes",
            ),
            (
                self.max_connections >= 1,
                "limits.max_connections",
                "at least 1",
            ),
            (self.max_requests >= 1, "limits.max_requests", "at least 1"),
            (self.max_running >= 1, "limits.max_running", "at least 1"),
            (
                (0.0..=86_400.0).contains(&self.request_timeout_s),
                "limits.request_timeout_s",
                "between 0 and 86400",
            ),
            (self.max_choices >= 1, "limits.max_choices", "at least 1"),
            (self.max_headers >= 1, "limits.max_headers", "at least 1"),
            (
                self.response_buffer_bytes >= 1024,
                "limits.response_buffer_bytes",
                "at least 1024",
            ),
            (
                is_time(self.body_timeout_s),
                "limits.body_timeout_s",
                "a positive number of seconds",
            ),
            (
                is_time(self.header_timeout_s),
                "limits.header_timeout_s",
                "a positive number of seconds",
            ),
            (
                is_time(self.keep_alive_timeout_s),
                "limits.keep_alive_timeout_s",
                "a positive number of seconds",
            ),
            (
                is_time(self.stall_timeout_s),
                "limits.stall_timeout_s",
                "a positive number of seconds",
            ),
            (
                self.ping_interval_s == 0.0 || is_time(self.ping_interval_s),
                "limits.ping_interval_s",
                "0 or more seconds",
            ),
            (
                is_time(self.health_timeout_s),
                "limits.health_timeout_s",
                "a positive number of seconds",
            ),
            (
                self.max_connection_age_s == 0.0 || is_time(self.max_connection_age_s),
                "limits.max_connection_age_s",
                "0 or more seconds",
            ),
            (
                self.max_concurrent_streams >= 1,
                "limits.max_concurrent_streams",
                "at least 1",
            ),
        ]
    }

    pub(crate) fn request_timeout(&self) -> Option<Duration> {
        let seconds = self.request_timeout_s;
        (seconds > 0.0).then(|| Duration::from_secs_f64(seconds))
    }

    pub(crate) fn body_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.body_timeout_s)
    }

    pub(crate) fn header_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.header_timeout_s)
    }

    pub(crate) fn keep_alive_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.keep_alive_timeout_s)
    }

    pub(crate) fn max_connection_age(&self) -> Option<Duration> {
        let age = self.max_connection_age_s;
        (age > 0.0).then(|| Duration::from_secs_f64(age))
    }

    pub(crate) fn stall_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.stall_timeout_s)
    }

    pub(crate) fn ping_interval(&self) -> Option<Duration> {
        (self.ping_interval_s > 0.0).then(|| Duration::from_secs_f64(self.ping_interval_s))
    }

    pub(crate) fn health_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.health_timeout_s)
    }
}
