//! The next table of children, while it is made.

use crate::raw::Children;

/// A table of children that readers are not shown yet.
pub(super) struct NextChildren {
    pub(super) table: Children,
    /// Runs with smaller numbers are in it.
    pub(super) until: u32,
}

impl NextChildren {
    /// The table, if a run of this number is in it.
    pub(super) fn of(next: Option<&Self>, id: u32) -> Option<&Children> {
        next.filter(|next| id < next.until).map(|next| &next.table)
    }
}
