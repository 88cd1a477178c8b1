//! The writer: the index's data about which holder has which blocks, and the operations that change it.
//!
//! A holder's *regular* blocks are those reachable from the root whose positions it covers under one block hash; nearly
//! all are. In each run they are a prefix, so a holder is one cutoff per run, kept in the run's levels. All other
//! blocks (below a hole, orphans, second block hashes of one position) are *irregular* and kept separately by block
//! hash.
//!
//! Readers see only levels. These change from the root down when a holder gains blocks and from the leaves up when it
//! loses some, so that a reader always sees a prefix that the holder really has at that time.
//!
//! The operations are methods of one [`Writer`]. Each folder or file uses only those above it in this table:
//!
//! | folder | content |
//! |---|---|
//! | `names/` | block hash to position: hash tables of the block hashes that holders share, and private ones |
//! | `holders/` | data about each holder, its irregular blocks, a worker's ranks, and departing holders |
//! | `state.rs` | the writer: its data, and when it frees memory |
//! | `steps/` | changes of a holder's blocks, and the events of a rank: its own text lists its files |

mod holders;
mod names;
mod state;
mod steps;
#[cfg(all(test, not(loom)))]
mod tests;

pub(crate) use state::Writer;
pub use steps::{Adoption, Roots};
pub(crate) use steps::{Chain, LargeCopy, Slice, Way};
