//! Positions of blocks, as a run and an offset in it, and the comparison of chains.

/// The run that stands for the empty prompt.
pub(crate) const ROOT: u32 = 0;
/// No block hash: at positions whose holders all name them differently.
pub(crate) const NO_NAME: u64 = 0xa5c3_96e1_7b24_d80f;

/// A block: which run, and which of its blocks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Position {
    pub(crate) run: u32,
    pub(crate) offset: u32,
}

impl Position {
    /// Place of this block's continuation.
    #[inline]
    pub(crate) fn after(self) -> Place {
        Place { run: self.run, blocks: self.offset + 1 }
    }
}

/// A place between blocks: after the first `blocks` blocks of a run. What comes next is in the run itself or in a child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) run: u32,
    pub(crate) blocks: u32,
}

impl Place {
    pub(crate) const ROOT: Self = Self { run: ROOT, blocks: 0 };

    /// The block before this place, if there is one.
    pub(crate) fn before(self) -> Option<Position> {
        (self.run != ROOT).then(|| Position { run: self.run, offset: self.blocks - 1 })
    }
}

/// Number of leading items that are equal.
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
