//! What links say about themselves: greetings, liveness, credit, calls.

use serde::{Deserialize, Serialize};

use crate::message::Tag;

/// First message of a connecting peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    pub tag: Tag<0>,
    /// [`crate::VERSION`] of the sender.
    pub version: u16,
    /// `entry`, `scheduler`, `detokenizer` or `supervisor`.
    pub role: String,
    /// Number of the peer among its role.
    pub index: u32,
    /// Random per process start; tells a restarted peer from a reconnected one.
    pub incarnation: u64,
}

/// Answer to [`Hello`]: the receiver takes messages from now on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ready {
    pub tag: Tag<1>,
    pub version: u16,
    pub incarnation: u64,
    /// Messages with credit (see [`Credit`]) that may be sent before more is granted.
    pub credit: u32,
    /// JSON object that describes the receiver; empty when it has nothing to say.
    pub info: String,
}

/// Death notice: nothing comes from this peer any more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dead {
    pub tag: Tag<2>,
    pub incarnation: u64,
    pub reason: String,
}

/// Sign of life, sent by both ends of a link; the receiver echoes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    pub tag: Tag<3>,
    pub incarnation: u64,
    pub sequence: u64,
}

/// `count` more requests may be submitted on this link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Credit {
    pub tag: Tag<4>,
    pub count: u32,
}

/// A control call; `arguments` is JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    pub tag: Tag<20>,
    pub call: u64,
    pub method: String,
    pub arguments: String,
}

/// Answer to a [`Call`]; `value` is JSON, an error message when not `ok`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    pub tag: Tag<21>,
    pub call: u64,
    pub ok: bool,
    pub value: String,
}
