//! Operations of the writer on holders (ranks' caches) and ranks, as methods of one [`Writer`]. Long operations are
//! done in steps.
//!
//! | file | operations |
//! |---|---|
//! | `lookup.rs` | the blocks of a holder, by block hash, by position, and as chains |
//! | `cover.rs` | changes of the number of a run's first blocks that a holder has: levels and block hashes together |
//! | `branches.rs`, `lose.rs` | a holder loses blocks: those with many others after them, those with few, or all |
//! | `private.rs` | a holder gets a private table of block hashes, at once or in steps |
//! | `gain.rs` | a holder gains blocks |
//! | `ranks.rs`, `tiers.rs` | registration of ranks; holders of a rank's views beyond the device |
//! | `store.rs`, `clear.rs` | events of a worker's rank |
//! | `adopt.rs` | blocks that were never announced: which are missing, and their contents from other sources |
//! | `loading.rs` | updates of the book of blocks that can be loaded |
//! | `slices.rs` | copies of a rank's blocks, in slices |
//!
//! Events leave some work to be done later: a part of it is done at the end of each event.

mod adopt;
mod branches;
mod clear;
mod cover;
mod gain;
mod loading;
mod lookup;
mod lose;
mod private;
mod ranks;
mod slices;
mod store;
mod tiers;

use super::state::Writer;
pub use adopt::{Adoption, Roots};
pub(crate) use slices::{LargeCopy, Slice};
pub(crate) use store::{Chain, Way};

impl Writer {
    /// Does an event's share of the writer's pending work, such as removing holders (ranks' caches) or building tables.
    #[inline]
    pub(crate) fn do_share(&mut self) {
        self.see_off();
        self.gather_names();
    }

    /// Does pending work of the writer, such as clearing or building tables: up to `blocks` blocks of each kind of
    /// work.
    pub(crate) fn do_some(&mut self, blocks: usize) {
        self.see_off_some(blocks);
        self.gather_some_names(blocks);
    }

    /// True if any work is pending, or there is memory to free that no reader can use any longer.
    pub(crate) fn has_more_to_do(&self) -> bool {
        !self.leaving.is_empty() || !self.gathering.is_empty() || self.has_garbage()
    }
}
