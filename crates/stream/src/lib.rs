//! Event stream of one inference engine: reading batches of KV events from the engine's sockets, and deciding whether
//! each batch is applied, kept, requested again or dropped. The crate does not interpret the events in a batch.
//!
//! * [`zmtp`]: ZeroMQ's protocol. Messages are read only as fast as a stream processes them, and their size is bounded.
//! * [`machine`]: rules for the batches in these messages, without sockets and clock.
//! * [`window`]: hashes of the latest applied batches, and batches that wait for missing earlier ones.
//! * [`limits`]: limits on the memory that engines can make the service use, and counts of how often each was reached.
//! * [`State`], [`Outcome`], [`Skip`], [`Mark`]: state of a stream, and outcome of its held blocks in a snapshot.

#![forbid(unsafe_code)]

pub mod limits;
pub mod machine;
mod state;
pub mod window;
pub mod zmtp;

pub use self::state::{Mark, Outcome, Skip, State};
