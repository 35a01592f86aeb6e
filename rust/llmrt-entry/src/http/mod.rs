//! From an HTTP request to the handler of its route, and back.

mod body;
mod budget;
mod cors;
mod host;
mod keys;
mod request_id;
mod response;
mod routes;
mod service;

pub use body::{RequestBody, read_json};
pub use budget::{BodyBudget, Held};
pub use cors::Cors;
pub use host::Hosts;
pub use request_id::RequestIds;
pub use response::{Body, Response, json};
pub use routes::{Route, Routes, table};
pub use service::HttpService;
