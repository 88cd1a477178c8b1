//! The event stream of one inference engine: from its sockets to the decision what to do with each batch. Nothing here
//! knows of blocks.
//!
//! * [`zmtp`]: ZeroMQ's protocol. Messages are read when a stream wants them, and bounded in bytes.
//! * [`machine`]: rules for the batches that these messages bring, without sockets and clock.
//! * [`window`]: hashes of the latest applied batches, and the batches that wait for earlier ones.
//! * [`limits`]: limits on the memory that engines can make the service use, and counts of how often each was reached.
//! * [`State`], [`Outcome`], [`Skip`], [`Mark`]: the state of a stream, and the outcome of its holdings in a snapshot.

#![forbid(unsafe_code)]

pub mod limits;
pub mod machine;
mod state;
pub mod window;
pub mod zmtp;

pub use self::state::{Mark, Outcome, Skip, State};
