//! The state of the fleet: written by streams and registrations, read by queries. No sockets, no tasks.
//!
//! ```text
//! Registration ──▶ Stream (with its StreamStatus) ──▶ Members ──▶ Untrusted ──▶ Keyspace (with its index, and Hybrids)
//! ```

mod copies;
mod hybrids;
mod keyspace;
mod members;
mod proven;
mod registration;
mod reservations;
mod status;
mod stream;

pub(crate) use copies::{CopiedRank, CopiedStream, CopyRequest};
pub use hybrids::{HybridRanks, Hybrids};
pub use keyspace::Keyspace;
pub use kvatlas_stream::State;
pub use registration::{ModelNames, Registration};
pub use reservations::Reservations;
pub use status::{Counters, SnapshotOutcome, StreamStatus};
pub use stream::Stream;
