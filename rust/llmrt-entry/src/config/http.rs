//! What a worker is told about HTTP beyond the bounds of its limits.

use std::time::Duration;

use llmrt_link::Rule;
use serde::Deserialize;

use super::is_time;

/// HTTP/2 on the listening socket.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Http2 {
    /// Off: HTTP/1.1 alone, in clear text and over TLS.
    pub enabled: bool,
    /// Bytes of a request body that a client may send ahead on one stream.
    pub stream_window: u32,
    /// The same for all streams of a connection together.
    pub connection_window: u32,
    /// Seconds of silence after which a client is pinged.
    pub keep_alive_interval_s: f64,
    /// Seconds within which it must answer the ping.
    pub keep_alive_timeout_s: f64,
}

impl Default for Http2 {
    fn default() -> Self {
        Self {
            enabled: true,
            stream_window: 256 << 10,
            connection_window: 1 << 20,
            keep_alive_interval_s: 20.0,
            keep_alive_timeout_s: 20.0,
        }
    }
}

impl Http2 {
    /// Largest window (RFC 9113, section 6.9.1).
    pub(super) const MAX_WINDOW: u32 = (1 << 31) - 1;
    /// Window of a new connection, which cannot be made smaller (section 6.9.2).
    pub(super) const MIN_CONNECTION_WINDOW: u32 = (1 << 16) - 1;

    pub(crate) fn keep_alive_interval(&self) -> Duration {
        Duration::from_secs_f64(self.keep_alive_interval_s)
    }

    pub(crate) fn keep_alive_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.keep_alive_timeout_s)
    }
}

/// Where requests may come from and go to, for the sake of clients that run in a browser.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Web {
    /// Path below which a proxy serves this server; paths are taken with and without it.
    pub root_path: String,
    /// Hosts, without port, that requests may name beside this machine's loopback names; `*.` in front stands for any
    /// name below, `*` for every host. Absent: hosts are not looked at.
    pub allowed_hosts: Option<Vec<String>>,
    pub cors: Cors,
}

/// What pages of other origins may do.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cors {
    /// Origins such as `https://chat.example`; `*` is every one.
    pub origins: Vec<String>,
    /// Methods that a preflight allows; empty: the one that it asks for.
    pub methods: Vec<String>,
    /// Header fields that a preflight allows; empty: those that it asks for.
    pub headers: Vec<String>,
    /// Whether cookies and client certificates may be sent along.
    pub credentials: bool,
}

impl Cors {
    pub(crate) const ANY: &str = "*";

    /// Whether all names can stand in a header.
    pub(super) fn is_sound(&self) -> bool {
        let names = [&self.origins, &self.methods, &self.headers];
        let visible =
            |name: &String| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
        names.into_iter().flatten().all(visible)
    }

    /// Whether every origin is allowed.
    pub(crate) fn any(&self) -> bool {
        self.origins.iter().any(|origin| origin == Self::ANY)
    }
}

impl Http2 {
    pub(super) fn rules(&self) -> impl IntoIterator<Item = Rule> {
        [
            (
                self.stream_window <= Http2::MAX_WINDOW,
                "http2.stream_window",
                "at most 2147483647",
            ),
            (
                (Http2::MIN_CONNECTION_WINDOW..=Http2::MAX_WINDOW)
                    .contains(&self.connection_window),
                "http2.connection_window",
                "between 65535 and 2147483647",
            ),
            (
                is_time(self.keep_alive_interval_s) && is_time(self.keep_alive_timeout_s),
                "http2.keep_alive_interval_s and http2.keep_alive_timeout_s",
                "positive numbers of seconds",
            ),
        ]
    }
}

impl Web {
    pub(super) fn rules(&self) -> impl IntoIterator<Item = Rule> {
        [
            (
                self.cors.is_sound(),
                "web.cors",
                "lists of visible ASCII characters without spaces",
            ),
            (
                !(self.cors.credentials && self.cors.any()),
                "web.cors.credentials",
                "off where every origin is allowed",
            ),
        ]
    }
}
