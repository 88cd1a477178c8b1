//! Positions of blocks in the index: a run (a stored list of consecutive blocks) and an offset in it. Also the
//! comparison of chains.

/// Number of the run of blocks that represents the empty prompt.
pub(crate) const ROOT: u32 = 0;
/// Special block hash for positions (runs of blocks and offsets) whose holders (ranks' caches) all use different block
/// hashes.
pub(crate) const NO_NAME: u64 = 0xa5c3_96e1_7b24_d80f;

/// Position of a block: the number of its run (a list of consecutive blocks), and its offset in the run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Position {
    pub(crate) run: u32,
    pub(crate) offset: u32,
}

impl Position {
    /// Place directly after the block at this position (run of blocks and offset).
    #[inline]
    pub(crate) fn after(self) -> Place {
        Place { run: self.run, blocks: self.offset + 1 }
    }
}

/// Place between two blocks: after the first `blocks` blocks of a run (a list of consecutive blocks). The next block is
/// in the same run or in another run that continues it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) run: u32,
    pub(crate) blocks: u32,
}

impl Place {
    pub(crate) const ROOT: Self = Self { run: ROOT, blocks: 0 };

    /// Position (run of blocks and offset) of the block before this place; None at the start of the prompt.
    pub(crate) fn before(self) -> Option<Position> {
        (self.run != ROOT).then(|| Position { run: self.run, offset: self.blocks - 1 })
    }
}

/// Number of leading items that are equal in both slices.
#[inline]
pub(crate) fn common_prefix(a: &[u64], b: &[u64]) -> usize {
    let n = a.len().min(b.len());
    let (a, b) = (&a[..n], &b[..n]);
    let mut i = 0;
    while i + 8 <= n && a[i..i + 8] == b[i..i + 8] {
        i += 8;
    }
    while i < n && a[i] == b[i] {
        i += 1;
    }
    i
}
