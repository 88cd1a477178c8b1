//! Ranks that are being copied, and what has happened to them meanwhile.

use hashbrown::HashSet;

/// One rank that is being dumped.
pub(crate) struct Watch {
    pub(super) id: u64,
    /// The rank's holders of the narrowest view and of the widest.
    pub(super) holders: [u32; 2],
    /// Names that something has happened to.
    pub(super) touched: HashSet<u64>,
    /// True if something has happened to all of them.
    pub(super) over: bool,
}

/// All ranks that are being dumped.
#[derive(Default)]
pub(crate) struct Watches {
    pub(super) all: Vec<Watch>,
    pub(super) last: u64,
}

impl Watches {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}
