//! The secret that a core and its nodes share.

use std::fmt;

use serde::Deserialize;
use sha2::{Digest, Sha256};

/// Bytes that a secret must have at least.
const LEAST: usize = 16;
/// Keeps the key of this protocol apart from any other that is made of the same secret.
const PURPOSE: &[u8] = b"llmrt tunnel 1\0";

/// Why a text is no secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the shared secret must have at least {LEAST} bytes")]
pub struct SecretError;

/// The key that is made from the shared secret; never shown.
#[derive(Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct Secret([u8; 32]);

impl Secret {
    /// # Errors
    /// It is too short to withstand guessing.
    pub fn new(secret: &[u8]) -> Result<Self, SecretError> {
        if secret.len() < LEAST {
            return Err(SecretError);
        }
        let digest = Sha256::new().chain_update(PURPOSE).chain_update(secret);
        Ok(Self(digest.finalize().into()))
    }

    pub(crate) fn key(&self) -> &[u8; 32] {
        &self.0
    }
}

impl TryFrom<String> for Secret {
    type Error = SecretError;

    fn try_from(secret: String) -> Result<Self, SecretError> {
        Self::new(secret.as_bytes())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}
