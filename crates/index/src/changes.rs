//! Many changes by one who has waited for the others once.

use std::sync::MutexGuard;

use crate::error::Error;
use crate::handle::RankHandle;
use crate::index::{BlockIndex, Config};
use crate::types::{BlockHash, Event, Tier};
use crate::writer::{Chain, Writer};

/// Blocks changed before others have their turn: a fraction of a millisecond.
const TURN: usize = 1024;

/// Changes of an index, one after the other. From the first on, others who want to change something wait until this is
/// dropped, or until so many blocks were changed that they have their turn. Readers see each change as it is made.
pub struct Changes<'i> {
    index: &'i BlockIndex,
    writer: Option<MutexGuard<'i, Writer>>,
    /// Blocks until the others' turn.
    left: usize,
}

impl<'i> Changes<'i> {
    pub(crate) fn new(index: &'i BlockIndex) -> Self {
        Self { index, writer: None, left: TURN }
    }

    /// What the index was made with.
    #[must_use]
    pub fn config(&self) -> Config {
        self.index.config()
    }

    /// As [`BlockIndex::store`].
    ///
    /// # Errors
    /// As there.
    pub fn store(
        &mut self,
        worker: &str,
        rank: u32,
        tier: Tier,
        parent: Option<BlockHash>,
        block_hashes: &[BlockHash],
        content_hashes: &[u64],
    ) -> Result<(), Error> {
        let chain = Chain::new(parent, block_hashes, content_hashes)?;
        self.write(block_hashes.len(), false, |writer| writer.store(worker, rank, tier, &chain))
    }

    /// As [`BlockIndex::store_once`].
    ///
    /// # Errors
    /// As there.
    pub fn store_once(
        &mut self,
        worker: &str,
        rank: u32,
        tier: Tier,
        parent: Option<BlockHash>,
        block_hashes: &[BlockHash],
        content_hashes: &[u64],
    ) -> Result<(), Error> {
        let chain = Chain::new(parent, block_hashes, content_hashes)?;
        self.write(block_hashes.len(), false, |writer| {
            writer.without_copies(|writer| writer.store(worker, rank, tier, &chain))
        })
    }

    /// As [`BlockIndex::store_known`].
    pub fn store_known(&mut self, worker: &str, rank: u32, tier: Tier, block_hashes: &[BlockHash]) -> Vec<BlockHash> {
        self.write(block_hashes.len(), false, |writer| writer.store_known(worker, rank, tier, block_hashes))
    }

    /// As [`BlockIndex::remove`].
    pub fn remove(&mut self, worker: &str, rank: u32, tier: Tier, block_hashes: &[BlockHash]) {
        self.write(block_hashes.len(), false, |writer| writer.remove(worker, rank, tier, block_hashes));
    }

    /// As [`store`](Self::store), by a handle of the worker's rank, which spares a look-up by name.
    ///
    /// # Errors
    /// As there.
    pub fn store_to(
        &mut self,
        rank: &RankHandle,
        tier: Tier,
        parent: Option<BlockHash>,
        block_hashes: &[BlockHash],
        content_hashes: &[u64],
    ) -> Result<(), Error> {
        let chain = Chain::new(parent, block_hashes, content_hashes)?;
        self.write(block_hashes.len(), false, |writer| writer.store_to(rank, tier, &chain))
    }

    /// As [`remove`](Self::remove), by a handle of the worker's rank, which spares a look-up by name.
    pub fn remove_from(&mut self, rank: &RankHandle, tier: Tier, block_hashes: &[BlockHash]) {
        self.write(block_hashes.len(), false, |writer| writer.remove_from(rank, tier, block_hashes));
    }

    /// As [`BlockIndex::clear`].
    pub fn clear(&mut self, worker: &str, rank: Option<u32>, tier: Option<Tier>) {
        self.write(TURN, true, |writer| writer.clear(worker, rank, tier));
    }

    /// As [`BlockIndex::dump_rank`], which would wait for this for ever.
    pub fn dump_rank(&mut self, worker: &str, rank: u32) -> Vec<Event> {
        let mut events = Vec::new();
        self.write(TURN, false, |writer| writer.dump_rank(worker, rank, &mut events));
        events
    }

    fn write<T>(&mut self, blocks: usize, tidy_now: bool, change: impl FnOnce(&mut Writer) -> T) -> T {
        if self.left == 0 {
            (self.writer, self.left) = (None, TURN);
        }
        self.left = self.left.saturating_sub(blocks.max(1));
        let Self { index, writer, .. } = self;
        let writer = writer.get_or_insert_with(|| index.lock());
        let result = change(writer);
        writer.see_off();
        writer.tidy(&index.readers, tidy_now);
        result
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn others_have_their_turn_while_changes_go_on() {
        let index = &BlockIndex::new(Config::default()).unwrap();
        let done = &AtomicBool::new(false);
        thread::scope(|scope| {
            let mut changes = index.changes();
            changes.store("a", 0, Tier::Gpu, None, &[BlockHash(1)], &[1]).unwrap();
            scope.spawn(move || {
                index.store("b", 0, Tier::Gpu, None, &[BlockHash(1)], &[1]).unwrap();
                done.store(true, Ordering::SeqCst);
            });
            let start = Instant::now();
            while !done.load(Ordering::SeqCst) {
                assert!(start.elapsed() < Duration::from_secs(60), "nobody else comes in");
                changes.remove("a", 0, Tier::Gpu, &[BlockHash(1)]);
                changes.store("a", 0, Tier::Gpu, None, &[BlockHash(1)], &[1]).unwrap();
            }
        });
        let held: Vec<_> = index.workers().into_iter().map(|(worker, blocks)| (worker.to_string(), blocks)).collect();
        assert_eq!(held, [("a".to_owned(), 1), ("b".to_owned(), 1)]);
    }

    #[test]
    fn a_handle_means_its_rank_whoever_comes_and_goes() {
        let (one, other) = (BlockIndex::new(Config::default()).unwrap(), BlockIndex::new(Config::default()).unwrap());
        let handles = [RankHandle::new("a", 0), RankHandle::new("a", 1), RankHandle::new("b", 0)];
        let held = |index: &BlockIndex| {
            let mut held: Vec<_> = index.ranks().iter().map(|it| (it.worker.to_string(), it.rank)).collect();
            held.sort();
            held
        };
        for round in 0..4_u64 {
            for index in [&one, &other] {
                for handle in &handles {
                    let mut changes = index.changes();
                    changes.remove_from(handle, Tier::Gpu, &[BlockHash(9)]);
                    changes.store_to(handle, Tier::Gpu, None, &[BlockHash(1), BlockHash(2)], &[1, 2]).unwrap();
                    changes.remove_from(handle, Tier::Gpu, &[BlockHash(2)]);
                    drop(changes);
                    index.store(handle.worker(), handle.rank(), Tier::Gpu, None, &[BlockHash(3)], &[3]).unwrap();
                }
                assert_eq!(held(index), [("a".to_owned(), 0), ("a".to_owned(), 1), ("b".to_owned(), 0)]);
                assert!(index.ranks().iter().all(|it| it.device_blocks == 2), "{:?}", index.ranks());
                // Their numbers are others' afterwards.
                index.drop_worker(["a", "b"][round as usize % 2]);
                index.store("c", round as u32, Tier::Gpu, None, &[BlockHash(1)], &[1]).unwrap();
                index.drop_worker(["b", "a"][round as usize % 2]);
                index.drop_worker("c");
            }
        }
    }

    #[test]
    fn others_wait_from_the_first_change_to_the_last() {
        let index = &BlockIndex::new(Config::default()).unwrap();
        let mut changes = index.changes();
        assert!(!index.is_locked(), "who has changed nothing keeps nobody waiting");
        changes.store("a", 0, Tier::Gpu, None, &[BlockHash(1)], &[1]).unwrap();
        assert!(index.is_locked());
        changes.clear("a", Some(0), None);
        assert!(index.is_locked(), "one turn is not over");
        drop(changes);
        assert!(!index.is_locked());
    }

    #[test]
    fn a_dump_between_changes_has_those_before_it() {
        let index = &BlockIndex::new(Config::default()).unwrap();
        let mut changes = index.changes();
        changes.store("a", 0, Tier::Gpu, None, &[BlockHash(1)], &[1]).unwrap();
        changes.store("b", 0, Tier::Gpu, None, &[BlockHash(2)], &[1]).unwrap();
        let dumped = changes.dump_rank("a", 0);
        changes.remove("a", 0, Tier::Gpu, &[BlockHash(1)]);
        assert_eq!(changes.dump_rank("a", 0), []);
        drop(changes);
        assert_eq!(index.dump_rank("a", 0), []);
        index.store("a", 0, Tier::Gpu, None, &[BlockHash(1)], &[1]).unwrap();
        assert_eq!((dumped.len(), index.dump_rank("a", 0)), (1, dumped));
    }

    #[test]
    fn a_store_of_unequal_lists_changes_nothing() {
        let index = BlockIndex::new(Config::default()).unwrap();
        let refused = index.changes().store("a", 0, Tier::Gpu, None, &[BlockHash(1)], &[]);
        assert_eq!(refused, Err(Error::LengthMismatch { block_hashes: 1, content_hashes: 0 }));
        assert!(index.workers().is_empty());
    }
}
