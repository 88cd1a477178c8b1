//! A holder's branches: what they are called, and what they wait for.

use crate::position::Position;

/// Branch: blocks of a holder below a hole.
#[derive(Clone, Copy)]
pub(super) struct Branch {
    pub(super) number: u32,
    /// The missing block, and where it was.
    pub(super) awaits: u64,
    pub(super) at: Position,
}

/// All branches of a holder: at least one.
#[derive(Default)]
pub(crate) struct Branches {
    pub(super) all: Vec<Branch>,
    /// Blocks of them all.
    pub(super) blocks: u64,
}

impl Branches {
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.all.capacity() * size_of::<Branch>()
    }
}
