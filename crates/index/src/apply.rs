//! Events and single changes, applied to an index: each waits for others' changes by itself.

use crate::changes::Changes;
use crate::error::Error;
use crate::index::BlockIndex;
use crate::types::{BlockHash, Event, Tier};

impl BlockIndex {
    /// Several changes that wait for others' once: for the events of one batch, for instance.
    #[must_use]
    pub fn changes(&self) -> Changes<'_> {
        Changes::new(self)
    }

    /// A worker's rank has cached consecutive blocks of one chain. The first continues `parent` (a block hash of the
    /// same worker and rank, known or not), or starts a prompt; each other continues the one before it.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] unless there is one content hash for each block hash; nothing has changed then.
    /// [`Error::Full`] if the index can number no more blocks; nothing has changed then, either.
    pub fn store(
        &self,
        worker: &str,
        rank: u32,
        tier: Tier,
        parent: Option<BlockHash>,
        block_hashes: &[BlockHash],
        content_hashes: &[u64],
    ) -> Result<(), Error> {
        self.changes().store(&(worker, rank), tier, parent, block_hashes, content_hashes)
    }

    /// As [`store`](Self::store), by an engine that announces blocks again without another copy of them: what the rank
    /// holds already on this tier is held as before.
    ///
    /// # Errors
    /// As [`store`](Self::store).
    pub fn store_once(
        &self,
        worker: &str,
        rank: u32,
        tier: Tier,
        parent: Option<BlockHash>,
        block_hashes: &[BlockHash],
        content_hashes: &[u64],
    ) -> Result<(), Error> {
        self.changes().store_once(&(worker, rank), tier, parent, block_hashes, content_hashes)
    }

    /// A worker's rank has copies on a tier of blocks that it holds already, by name alone: what they continue and
    /// contain is what the rank's newest announcement of the name said. Returns the names that it does not hold on
    /// any tier; those are left out.
    pub fn store_known(&self, worker: &str, rank: u32, tier: Tier, block_hashes: &[BlockHash]) -> Vec<BlockHash> {
        self.changes().store_known(&(worker, rank), tier, block_hashes)
    }

    /// A worker's rank has evicted blocks from a tier, in any order. Names that it does not hold there change
    /// nothing, and are counted.
    pub fn remove(&self, worker: &str, rank: u32, tier: Tier, block_hashes: &[BlockHash]) {
        self.changes().remove(&(worker, rank), tier, block_hashes);
    }

    /// A worker has lost all its blocks, or those of one rank, of one tier, or both. It stays known. Readers see it at
    /// once; the memory of what was much goes back in the changes that follow, or by [`settle`](Self::settle). Only if one
    /// tier is cleared and others have blocks, they see block after block go, and other ranks may change meanwhile.
    pub fn clear(&self, worker: &str, rank: Option<u32>, tier: Option<Tier>) {
        self.changes().clear(worker, rank, tier);
    }

    /// A worker is gone, with all its blocks; their memory as in [`clear`](Self::clear).
    pub fn drop_worker(&self, worker: &str) {
        self.write_after(true, |writer| writer.drop_worker(worker));
    }

    /// Applies an event.
    ///
    /// # Errors
    /// As [`store`](Self::store).
    pub fn apply(&self, event: &Event) -> Result<(), Error> {
        match event {
            Event::Store { worker, rank, tier, parent, block_hashes, content_hashes } => {
                self.store(worker, *rank, *tier, *parent, block_hashes, content_hashes)?;
            }
            Event::Remove { worker, rank, tier, block_hashes } => self.remove(worker, *rank, *tier, block_hashes),
            Event::Clear { worker, rank, tier } => self.clear(worker, *rank, *tier),
            Event::Drop { worker } => self.drop_worker(worker),
        }
        Ok(())
    }

    /// Returns what one rank holds, as [`dump`](Self::dump) has it.
    #[must_use]
    pub fn dump_rank(&self, worker: &str, rank: u32) -> Vec<Event> {
        self.changes().dump_rank(worker, rank)
    }
}
