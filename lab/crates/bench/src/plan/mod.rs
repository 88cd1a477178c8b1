//! A plan: the operations on an index, each with its time. Columns, because a plan has millions of operations.

mod checked;
mod columns;
mod file;
mod format;
#[cfg(test)]
mod tests;

use kvatlas_designs::{Change, WorkerId};
use kvatlas_index::BlockHash;

pub use checked::{Facts, Plan};
pub use columns::{Columns, Kind};

/// One operation of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op<'p> {
    /// A lookup: see [`Kind::Lookup`].
    Lookup {
        /// The worker on which the request runs.
        worker: WorkerId,
        /// The content hash of each block of the prompt.
        contents: &'p [u64],
    },
    /// A store: see [`Kind::StoreRoot`] and [`Kind::StoreAfter`].
    Store {
        /// The worker that cached the blocks.
        worker: WorkerId,
        /// The block before the first, or `None` at the start of a prompt.
        parent: Option<u64>,
        /// Block hashes, in chain order.
        names: &'p [u64],
        /// Content hashes, as many as block hashes.
        contents: &'p [u64],
    },
    /// A removal: see [`Kind::Remove`].
    Remove {
        /// The worker that evicted the blocks.
        worker: WorkerId,
        /// Block hashes.
        names: &'p [u64],
    },
    /// A clear: see [`Kind::Clear`].
    Clear {
        /// The worker that lost everything.
        worker: WorkerId,
    },
}

impl Op<'_> {
    /// The worker of the operation.
    #[must_use]
    pub fn worker(&self) -> WorkerId {
        match *self {
            Self::Lookup { worker, .. }
            | Self::Store { worker, .. }
            | Self::Remove { worker, .. }
            | Self::Clear { worker } => worker,
        }
    }

    /// The operation as an owned change; `None` for a lookup.
    #[must_use]
    pub fn change(&self) -> Option<Change> {
        let owned = |names: &[u64]| names.iter().copied().map(BlockHash).collect();
        Some(match *self {
            Self::Lookup { .. } => return None,
            Self::Store { worker, parent, names, contents } => Change::Store {
                worker,
                parent: parent.map(BlockHash),
                block_hashes: owned(names),
                content_hashes: contents.into(),
            },
            Self::Remove { worker, names } => Change::Remove { worker, block_hashes: owned(names) },
            Self::Clear { worker } => Change::Clear { worker },
        })
    }
}
