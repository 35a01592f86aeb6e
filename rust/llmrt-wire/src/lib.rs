//! The messages that llmrt's processes exchange.
//!
//! Every message is one ZMQ frame: a msgpack array whose first element is the
//! message kind and whose other elements are the fields in declaration order.
//! `python/llmrt/wire.py` is this crate's twin; the golden files under
//! `tests/golden` hold the two together.
//!
//! The protocol version travels in [`Hello`] and [`Ready`], which open every
//! link; a receiver answers another version with [`Dead`] and drops the peer.

mod check;
mod column;
mod control;
mod frame;
mod id_map;
mod logprobs;
mod message;
mod request;

pub use check::FrameError;
pub use column::{Column, Scalar};
pub use control::{Call, Credit, Dead, Heartbeat, Hello, Ready, Reply};
pub use frame::{FinishReason, Finished, First, Opened, Outcome, TextFrame, TokenFrame};
pub use id_map::{IdHasher, IdMap};
pub use logprobs::{LogprobRow, Logprobs, PromptLogprobs, TokenIds};
pub use message::{Kind, Message, Tag, WireError, greeting_version};
pub use request::{Abort, Ended, Output, Request, RequestId, Sampling, Submit};

/// Version of the protocol described here; peers with another one are refused.
pub const VERSION: u16 = 2;
