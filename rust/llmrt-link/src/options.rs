//! Who is at a link and how the link behaves.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

/// Who connects: told to the receiver in `Hello`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `entry`, `scheduler`, `detokenizer` or `supervisor`.
    pub role: String,
    /// Number among the role.
    pub index: u32,
    /// Random per process start, see [`Identity::draw`].
    pub incarnation: u64,
}

impl Identity {
    /// An identity of this process start.
    pub fn new(role: &str, index: u32) -> Self {
        Self {
            role: role.to_owned(),
            index,
            incarnation: Self::draw(),
        }
    }

    /// A random number; the standard library seeds each hasher from the system.
    pub fn draw() -> u64 {
        RandomState::new().build_hasher().finish()
    }
}

/// What a receiver answers to `Hello`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Random per process start, see [`Identity::draw`].
    pub incarnation: u64,
    /// Requests that a peer may submit before more credit is granted.
    pub credit: u32,
    /// JSON object that describes the receiver; empty when it has nothing to say.
    pub info: String,
}

impl Welcome {
    /// The answer of a receiver that takes no requests and has nothing to say.
    pub fn new() -> Self {
        Self {
            incarnation: Identity::draw(),
            credit: 0,
            info: String::new(),
        }
    }
}

impl Default for Welcome {
    fn default() -> Self {
        Self::new()
    }
}

/// How a link behaves. Both ends should agree on `silence`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkOptions {
    /// Time between two signs of life.
    pub heartbeat: Duration,
    /// A peer that says nothing for so long is dead. Generous, because a core's step can be long.
    pub silence: Duration,
    /// Bytes that may be on their way without the receiver's acknowledgement.
    pub window: usize,
    /// Longest pause between two attempts to connect.
    pub backoff: Duration,
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(1),
            silence: Duration::from_secs(30),
            window: 64 << 20,
            backoff: Duration::from_secs(1),
        }
    }
}
