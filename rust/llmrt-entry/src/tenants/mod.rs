//! Who sends requests: the holders of API keys, and what each of them may do.
//!
//! All of it belongs to one worker: with several of them each counts for itself.

mod bucket;
mod drain;
mod file;
mod keys;
mod tenant;

pub use drain::Drain;
pub use file::KeyFileError;
pub use keys::Keys;
#[cfg(test)]
pub use tenant::Rules;
pub use tenant::{Tenant, overloaded};
