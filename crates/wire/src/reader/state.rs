//! State of a reader, to be kept with what the index holds and taken up again by another process.

use std::sync::Arc;

use kvatlas_index::{BlockHash, Tier};

use super::Reader;
use super::groups::Groups;
use super::salts::Salts;
use super::undescribed::NameOnlyBlocks;

/// A block that is held under a salt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaltedBlock {
    /// The engine's name.
    pub name: BlockHash,
    /// The salt.
    pub salt: Arc<str>,
    /// Copies on each tier, in the order of [`Tier::ALL`].
    pub copies: [u32; Tier::ALL.len()],
}

/// State of a [`Reader`] besides what the index holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReaderState {
    /// The cache group that is indexed.
    pub decides: Option<u32>,
    /// Cache groups that are not.
    pub others: Vec<u32>,
    /// True if the prefix may be cut shorter by a group that is not indexed.
    pub several: bool,
    /// True if names of blocks depend on the tokens after them.
    pub looks_ahead: bool,
    /// True if events have a place for salts; none while that is not known.
    pub shows_salts: Option<bool>,
    /// True if a connector that keeps blocks in host memory has announced any: it announces clears of its own.
    pub clears_host: bool,
    /// Blocks in a chunk of each tier beyond the device, as told or as stores show; 0 before the first.
    pub chunks: [u32; 3],
    /// Blocks that were announced by name on tiers beyond the device, with their copies on each, and whose contents the
    /// engine has not said yet; in the order of their announcements.
    pub undescribed: Vec<(BlockHash, [u32; Tier::ALL.len() - 1])>,
    /// The salted blocks held, in any order.
    pub salts: Vec<SaltedBlock>,
}

impl Reader {
    /// State of the reader; none for a hybrid model, which has more state than this.
    #[must_use]
    pub fn state(&self) -> Option<ReaderState> {
        if self.hybrid.is_some() {
            return None;
        }
        let salted = |(name, salt, copies): (BlockHash, &Arc<str>, _)| SaltedBlock { name, salt: salt.clone(), copies };
        Some(ReaderState {
            decides: self.groups.decides,
            others: self.groups.others.clone(),
            several: self.groups.several,
            looks_ahead: self.looks_ahead,
            shows_salts: self.shows_salts,
            clears_host: self.clears_host,
            chunks: self.chunks,
            undescribed: self.undescribed.iter().collect(),
            salts: self.salts.iter().map(salted).collect(),
        })
    }

    /// Takes up what another one remembered, of a rank that holds the same. Its settings stay.
    #[must_use]
    pub fn with_state(self, state: ReaderState) -> Self {
        let ReaderState { decides, others, several, looks_ahead, shows_salts, clears_host, chunks, undescribed, salts } =
            state;
        let mut blocks = Salts::default();
        salts.into_iter().for_each(|it| blocks.put(it.name, it.salt, it.copies));
        let mut waiting = NameOnlyBlocks::default();
        undescribed.into_iter().for_each(|(name, copies)| waiting.put(name, copies));
        let groups = Groups { decides, others, several };
        Self { groups, looks_ahead, shows_salts, clears_host, chunks, undescribed: waiting, salts: blocks, ..self }
    }
}
