//! Writer of the index: its data about which holder has which blocks, and the operations that change the data. A holder
//! is a rank's device, or a rank's device with other tiers.
//!
//! A holder's *regular* blocks are those with a complete chain from the beginning of the prompt, and with only one
//! block hash; nearly all blocks are regular. The regular blocks of a run (a list of consecutive blocks) that a holder
//! has are always the first ones, so one number per run describes them, which is kept in the run's levels. All other
//! blocks (after a missing block, with an unknown parent, or with a second block hash for the same block) are
//! *irregular* and kept separately by block hash.
//!
//! Readers see only levels. When a holder gains blocks, these change from the beginning of the prompt on, and when it
//! loses blocks, from the end, so that a reader always sees a prefix that the holder really has at that time.
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
