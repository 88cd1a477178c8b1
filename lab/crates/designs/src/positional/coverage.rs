//! Reports of an index over one group of workers to the level above: at a few positions, which prefixes anyone holds.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::table::{Place, Table};

/// The positions that the level above knows about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SparsePositions {
    /// The level above knows the positions 0, 1, 3, 7, 15, …: the last blocks of the first 1, 2, 4, 8, 16, … blocks.
    Doubling,
    /// The level above knows the positions 0, n, 2n, …: coarser or finer, the same everywhere. Never 0.
    Every(u32),
}

impl SparsePositions {
    /// True if the level above knows about a position.
    #[must_use]
    pub fn has(self, position: u32) -> bool {
        match self {
            Self::Doubling => (u64::from(position) + 1).is_power_of_two(),
            Self::Every(step) => position.is_multiple_of(step),
        }
    }

    /// The next position after one that the level above knows about.
    pub(crate) fn after(self, position: usize) -> usize {
        match self {
            Self::Doubling => position.saturating_mul(2).saturating_add(1),
            Self::Every(step) => position.saturating_add(step as usize),
        }
    }
}

/// The level above: at sparse positions, which groups hold which prefix.
#[derive(Debug)]
pub(crate) struct Top {
    pub(crate) table: Table,
    pub(crate) sparse: SparsePositions,
    /// Number of updates that came, a batch for each event that changed the coverage.
    pub(crate) updates: AtomicU64,
}

/// The way from the index of one group to the level above.
#[derive(Debug)]
pub(crate) struct Coverage {
    pub(crate) top: Arc<Top>,
    pub(crate) group: u32,
}

impl Coverage {
    /// Reports that the first of the group holds a place. Returns whether the level above had to know.
    pub(crate) fn gain(&self, place: Place) -> bool {
        self.top.sparse.has(place.position) && self.top.table.insert(place, self.group, || ())
    }

    /// Reports that nobody of the group holds a place any more. Returns whether the level above had to know.
    pub(crate) fn lose(&self, place: Place) -> bool {
        self.top.sparse.has(place.position) && self.top.table.remove(place, self.group, || ())
    }
}
