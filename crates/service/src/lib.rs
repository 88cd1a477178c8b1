//! Event streams of inference engines in, answers over HTTP out.
//!
//! ```text
//! engine ──ZMQ──▶ stream ──▶ kvatlas_wire ──▶ kvatlas_index ◀── http ◀── router
//! ```
//!
//! * [`fleet`]: who is registered. Every change goes through it.
//! * `stream`: a task for each engine rank: subscribes, replays, fills gaps, notices restarts and silence.
//! * `http`: queries, registration, health, metrics. Reads the index without a lock.
//! * [`status`]: what a stream's task tells the others about itself.
//!
//! Streams and queries have threads of their own, so that neither waits for the other.

pub mod endpoint;
pub mod error;
pub mod fleet;
mod http;
pub mod keyspace;
pub mod log;
mod metrics;
mod registration;
mod service;
pub mod settings;
pub mod status;
mod stream;

pub use error::Error;
pub use service::Service;
pub use settings::Settings;
