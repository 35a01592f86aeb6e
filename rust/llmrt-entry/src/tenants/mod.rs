//! Who sends requests: the holders of API keys, and what each of them may do.
//!
//! What they have and use is counted by the ledger (`gate/`): of a server with several workers, one for all.

mod bucket;
mod drain;
mod file;
mod keys;
mod tenant;

pub use drain::Drain;
pub use file::KeyFileError;
pub use keys::{KeySources, Keys};
pub use tenant::Rules;
pub use tenant::{Tenant, overloaded};
