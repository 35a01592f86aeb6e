//! The mock engine: takes the scheduler's place on the real links and makes answers up.
//!
//! With it everything but the model can be tested and measured: it grants credit, takes requests, aborts and stops, and
//! sends one columnar token frame per step and detokenizer, with a token for every running request. [`State`] is the
//! whole of it without I/O or clock; [`run()`] connects a state to its links and paces it.

mod config;
mod fault;
mod lanes;
mod limits;
mod logprobs;
mod pattern;
mod request;
mod run;
mod serve;
mod state;
mod stats;

pub use config::Config;
pub use fault::{Fault, FaultError, FaultKind, Faults};
pub use limits::Limits;
pub use pattern::Pattern;
pub use run::{RunError, run};
pub use serve::{Links, serve};
pub use state::{State, StepOutput};
