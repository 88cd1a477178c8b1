//! Reports of a group's index to the level above: at a few positions, which prefixes any worker of the group holds.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::table::{Place, Table};

/// The positions that are reported to the level above.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SparsePositions {
    /// Positions 0, 1, 3, 7, 15, …: the last blocks of the first 1, 2, 4, 8, 16, … blocks.
    Doubling,
    /// Positions 0, n, 2n, …: of the given step, which is never 0.
    Every(u32),
}

impl SparsePositions {
    /// True if a position is reported.
    #[must_use]
    pub fn has(self, position: u32) -> bool {
        match self {
            Self::Doubling => (u64::from(position) + 1).is_power_of_two(),
            Self::Every(step) => position.is_multiple_of(step),
        }
    }

    /// The next reported position.
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
    /// Number of updates received, one for each event that changed the coverage.
    pub(crate) updates: AtomicU64,
}

/// The connection of one group's index to the level above.
#[derive(Debug)]
pub(crate) struct Coverage {
    pub(crate) top: Arc<Top>,
    pub(crate) group: u32,
}

impl Coverage {
    /// Reports a place's first holder in the group. Returns true if the position is a reported one.
    pub(crate) fn gain(&self, place: Place) -> bool {
        self.top.sparse.has(place.position) && self.top.table.insert(place, self.group, || ())
    }

    /// Reports that a place has no holder left in the group. Returns true if the position is a reported one.
    pub(crate) fn lose(&self, place: Place) -> bool {
        self.top.sparse.has(place.position) && self.top.table.remove(place, self.group, || ())
    }
}
