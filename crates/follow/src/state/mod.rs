//! State of the fleet, written by streams and registrations, and read by queries. It has no sockets and no tasks. A
//! keyspace is the index of one model in one routing group, with the streams that fill it.
//!
//! ```text
//! Registration ──▶ Stream (with its StreamStatus) ──▶ Members ──▶ Reservations ──▶ Keyspace (with its index, and Hybrids)
//! ```

mod hybrids;
mod keyspace;
mod members;
mod prompt_queue;
mod saved;
mod status;
mod stream;

pub(crate) use self::prompt_queue::{CacheReport, Counts as AdoptCounts, Prompt, time_of};
pub(crate) use self::saved::{
    CopiedRank, CopiedStream, CopyRequest, KeyedPool, RankBlocks, RankHead, SavedKeyspace, SavedRank, SavedStream,
    StreamCopy, StreamHead, UnnamedProofs,
};
pub use hybrids::{HybridRanks, Hybrids};
pub use keyspace::Keyspace;
pub(crate) use keyspace::tell_time;
pub use kvatlas_stream::State;
pub use members::Reservations;
pub use prompt_queue::PromptQueue;
pub use status::{Counters, SnapshotOutcome, StreamStatus};
pub use stream::{ModelNames, Registration, Stream};
