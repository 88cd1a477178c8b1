//! What is known of the fleet: written by streams and registrations, read by queries. No sockets, no tasks.
//!
//! ```text
//! Registration ──▶ Stream (with its StreamStatus) ──▶ Members ──▶ Untrusted ──▶ Keyspace (with its index, and Hybrids)
//! ```

mod copies;
mod hybrids;
mod keyspace;
mod lates;
mod members;
mod registration;
mod status;
mod stream;
mod untrusted;

pub(crate) use copies::{CopiedRank, CopiedStream, CopyRequest};
pub(crate) use hybrids::HybridRanks;
pub use keyspace::Keyspace;
pub use registration::{ModelNames, Registration};
pub use status::{Counters, FromSnapshot, State, StreamStatus};
pub use stream::Stream;
pub use untrusted::Untrusted;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The lock, also after a thread panicked while it held it: nothing in this crate is left half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
