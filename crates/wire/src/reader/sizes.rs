//! Sizes of blocks that an engine announces besides the one that is indexed.

/// Sizes that are told apart: an engine has one, or one for each of its cache groups.
const SIZES: usize = 4;

/// Blocks announced by their size, where that is not the index's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OtherSizes {
    /// Tokens in a block, and blocks; no blocks where there is no such size.
    sizes: [(u32, u64); SIZES],
}

impl OtherSizes {
    /// Notes blocks of a size.
    pub(crate) fn add(&mut self, size: u32, blocks: u64) {
        let place = self.sizes.iter().position(|its| its.0 == size && its.1 > 0);
        // Where there is no room, the rarest makes it.
        let rarest = (0..SIZES).min_by_key(|at| self.sizes[*at].1).unwrap_or_default();
        match place {
            Some(at) => self.sizes[at].1 += blocks,
            None => self.sizes[rarest] = (size, blocks),
        }
    }

    /// The size of which the most blocks were announced, with their number; of equals the larger one, as entries of parts
    /// of a block have smaller sizes.
    pub(crate) fn most(&self) -> Option<(u32, u64)> {
        self.sizes.iter().copied().filter(|its| its.1 > 0).max_by_key(|its| (its.1, its.0))
    }
}
