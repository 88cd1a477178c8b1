//! Blocks that the ranks of one stream have proved, and in which index they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvatlas_adopt::RankAdoption;
use kvatlas_index::BlockIndex;

/// Blocks that the ranks of one stream have proved. Whoever follows the stream changes them together with the index,
/// under one lock, so that whoever adopts finds the two as one.
#[derive(Default)]
pub(crate) struct ProvenBlocks {
    /// The index that the stream feeds, while it is followed.
    index: Option<Arc<BlockIndex>>,
    ranks: BTreeMap<u32, RankAdoption>,
}

impl ProvenBlocks {
    /// The stream is followed from now on, or not any more.
    pub(crate) fn begin(&mut self, index: Option<Arc<BlockIndex>>) {
        *self = Self { index, ranks: BTreeMap::new() };
    }

    /// The stream's blocks are gone, and perhaps the engine is another one.
    pub(crate) fn forget(&mut self) {
        self.ranks.values_mut().for_each(RankAdoption::begin);
    }

    /// One rank's.
    pub(crate) fn of(&mut self, rank: u32) -> &mut RankAdoption {
        self.ranks.entry(rank).or_default()
    }

    /// Calls `f` with each rank, if the stream is followed.
    pub(crate) fn each(&mut self, mut f: impl FnMut(&Arc<BlockIndex>, u32, &mut RankAdoption)) {
        if let Some(index) = &self.index {
            self.ranks.iter_mut().for_each(|(rank, late)| f(index, *rank, late));
        }
    }

    /// The blocks that each rank has proved, to be shown.
    pub(crate) fn all(&self) -> impl Iterator<Item = &RankAdoption> {
        self.ranks.values()
    }
}
