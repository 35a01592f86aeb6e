//! The detokenizer: token ids in, text and finished requests out; one frame in and one frame per entry worker out.
//!
//! [`State`] is the whole of it without I/O. [`run()`] connects a state to its links: an inbox for the scheduler's token
//! frames, an outbox to every entry worker, one to the scheduler (requests that a stop string ended) and one to the
//! supervisor (control calls).

mod config;
mod control;
mod cut;
mod deliver;
mod owed;
mod run;
mod serve;
mod state;
mod stream;
mod told;

pub use config::Config;
pub use run::{RunError, run};
pub use serve::{Links, serve};
pub use state::{State, Stats};
