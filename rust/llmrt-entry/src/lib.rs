//! The entry worker: HTTP in, results out.
//!
//! ```text
//! connection ── handler ── prompt (tokenizer's threads) ── router.open ── submit outbox ──▶ scheduler
//!     ▲                                                        │
//!     └── response body ◀── outlet ◀── router.deliver ◀── results inbox ◀── detokenizer
//! ```
//!
//! Everything but the tokenizer's threads runs on one I/O thread, a [`shard::Shard`]: it owns its connections, the
//! open responses on them, the submit outbox and the results inbox. Nothing on the way of a token locks, crosses a
//! thread or sets a timer. A step's frame is cut by id and appended to each response's buffer; the tasks of those
//! responses run in the same turn, and on HTTP/2 the connection's task runs behind them and writes once.
//!
//! A response owns a [`router::RequestGuard`]. Dropping the response is the one way to cancel a request.

pub mod api;
mod calls;
pub mod config;
mod control;
mod core;
mod gate;
mod handlers;
mod http;
mod links;
mod local;
mod metrics;
mod openapi;
mod prompt;
mod results;
mod router;
mod server;
mod shard;
mod stat_line;
mod succession;
mod tenants;
#[cfg(test)]
mod tests;
mod watched;
mod worker;

pub use config::EntryConfig;
pub use gate::{Keeper, KeeperError};
pub use llmrt_tunnel::Joined;
pub use local::{LocalClient, LocalResponse};
pub use metrics::exposition;
pub use shard::CoreDown;
pub use worker::{EntryWorker, StartError, check_keys, check_tls, serve};
