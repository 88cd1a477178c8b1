//! The event stream of one inference engine, up to what is to be done with its batches. It knows nothing of blocks.
//!
//! * [`zmtp`]: ZeroMQ's protocol. Messages are read when a stream wants them, and bounded in bytes.
//! * [`machine`]: rules for what to do with the batches that these messages bring, without sockets and clock.
//! * [`window`]: memory of the batches applied last, and those that have to wait for others.
//! * [`limits`]: limits on what engines can make grow, and counts of how often each was reached.
//! * [`State`], [`Outcome`], [`Skip`], [`Mark`]: what a stream is in, and what became of what a snapshot had of it.

#![forbid(unsafe_code)]

pub mod limits;
pub mod machine;
mod outcome;
mod state;
pub mod window;
pub mod zmtp;

pub use self::outcome::{Mark, Outcome, Skip};
pub use self::state::State;
