//! Calls from the supervisor.

use llmrt_wire::{Call, Reply};

use crate::state::Stats;

/// What a call asks of the loop besides its answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Then {
    GoOn,
    ShutDown,
}

/// Answers a call: `stats` with a JSON object, `shutdown` with `null` before the loop ends.
pub fn answer(call: &Call, stats: &Stats) -> (Reply, Then) {
    let (ok, value, then) = match call.method.as_str() {
        "stats" => match serde_json::to_string(stats) {
            Ok(value) => (true, value, Then::GoOn),
            Err(error) => (false, error.to_string(), Then::GoOn),
        },
        "shutdown" => (true, "null".to_owned(), Then::ShutDown),
        other => (
            false,
            format!("unknown method {other:?}; a detokenizer knows stats and shutdown"),
            Then::GoOn,
        ),
    };
    (
        Reply {
            tag: Default::default(),
            call: call.call,
            ok,
            value,
        },
        then,
    )
}
