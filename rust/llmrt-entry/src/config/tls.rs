//! What a worker is told about TLS.

use std::path::PathBuf;

use serde::Deserialize;

use super::Secret;

/// Certificate and key of the listening socket, and what is asked of clients. The files are PEM and read again when
/// they change.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The server's certificate and those between it and its root, in this order.
    pub certfile: PathBuf,
    /// Its key in PKCS#8, SEC1 or PKCS#1; without a file of its own it is in `certfile`.
    #[serde(default)]
    pub keyfile: Option<PathBuf>,
    /// Password of an encrypted PKCS#8 key.
    #[serde(default)]
    pub key_password: Option<Secret>,
    /// File whose first line is that password.
    #[serde(default)]
    pub key_password_file: Option<PathBuf>,
    /// Roots that clients' certificates must lead to; without them no client is asked for one.
    #[serde(default)]
    pub client_ca: Option<PathBuf>,
    #[serde(default)]
    pub client_verify: ClientVerify,
}

/// Whether a client may come without a certificate. One that it shows must hold in both cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientVerify {
    #[default]
    Required,
    Optional,
}
