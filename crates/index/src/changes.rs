//! Series of many changes of an index under one lock.

use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;

use crate::handle::RankRef;
use crate::index::{BlockIndex, Config};
use crate::types::{BlockHash, Error, Event, Tier};
use crate::writer::{Chain, Way, Writer};

/// Series of changes of an index under one lock. From the first change on, other writers wait until this value is
/// dropped, or until 1,024 blocks were changed: they then get the lock for a moment, even in the middle of a long store
/// or removal. Readers see each change immediately.
pub struct Changes<'i> {
    index: &'i BlockIndex,
    writer: Option<MutexGuard<'i, Writer>>,
    /// Number of changed blocks after which other writers get the lock for a moment.
    turn: usize,
    /// Number of blocks that may still be changed before other writers get the lock.
    left: usize,
}

impl<'i> Changes<'i> {
    pub(crate) fn new(index: &'i BlockIndex) -> Self {
        let turn = index.turn.load(Ordering::Relaxed);
        Self { index, writer: None, turn, left: turn }
    }

    /// Configuration that the index was created with.
    #[must_use]
    pub fn config(&self) -> Config {
        self.index.config()
    }

    /// Stores consecutive blocks of a chain like [`BlockIndex::store`].
    ///
    /// # Errors
    ///
    /// The errors of [`BlockIndex::store`].
    pub fn store(
        &mut self,
        rank: &impl RankRef,
        tier: Tier,
        parent: Option<BlockHash>,
        block_hashes: &[BlockHash],
        content_hashes: &[u64],
    ) -> Result<(), Error> {
        let chain = Chain::new(parent, block_hashes, content_hashes)?;
        self.prepare(rank, tier, chain.len() > 0);
        self.store_in_parts(chain, |writer, chain| writer.store(rank, tier, chain))
    }

    /// Stores blocks without counting further copies, like [`BlockIndex::store_once`].
    ///
    /// # Errors
    ///
    /// The errors of [`BlockIndex::store_once`].
    pub fn store_once(
        &mut self,
        rank: &impl RankRef,
        tier: Tier,
        parent: Option<BlockHash>,
        block_hashes: &[BlockHash],
        content_hashes: &[u64],
    ) -> Result<(), Error> {
        let chain = Chain::new(parent, block_hashes, content_hashes)?;
        self.prepare(rank, tier, chain.len() > 0);
        self.store_in_parts(chain, |writer, chain| writer.without_copies(|writer| writer.store(rank, tier, chain)))
    }

    /// Stores copies of known blocks on another tier, like [`BlockIndex::store_known`].
    pub fn store_known(&mut self, rank: &impl RankRef, tier: Tier, block_hashes: &[BlockHash]) -> Vec<BlockHash> {
        let mut unknown = Vec::new();
        self.prepare(rank, tier, !block_hashes.is_empty());
        for part in block_hashes.chunks(self.turn) {
            unknown.append(&mut self.write(part.len(), false, |writer| writer.store_known(rank, tier, part)));
        }
        unknown
    }

    /// Removes blocks like [`BlockIndex::remove`]. A long removal is done in parts, the ends of chains first, so that
    /// no hole appears in a chain between two parts. The given order of the block hashes has no other effect.
    #[inline]
    pub fn remove(&mut self, rank: &impl RankRef, tier: Tier, block_hashes: &[BlockHash]) {
        self.prepare(rank, tier, false);
        if block_hashes.len() <= self.turn {
            return self.remove_parts(rank, tier, std::iter::once(block_hashes));
        }
        match self.write(1, false, |writer| writer.way_of(writer.number_of(rank), block_hashes)) {
            Way::LeavesFirst => self.remove_parts(rank, tier, block_hashes.chunks(self.turn)),
            Way::RootFirst => self.remove_parts(rank, tier, block_hashes.rchunks(self.turn)),
            Way::Neither => {
                let mut far = Vec::with_capacity(block_hashes.len());
                for part in block_hashes.chunks(self.turn) {
                    self.write(part.len(), false, |writer| writer.farness(writer.number_of(rank), part, &mut far));
                }
                far.sort_unstable();
                let leaves_first: Vec<_> = far.into_iter().map(|(_, block_hash)| block_hash).collect();
                self.remove_parts(rank, tier, leaves_first.chunks(self.turn));
            }
        }
    }

    /// Removes all blocks of a worker, rank or tier like [`BlockIndex::clear`].
    pub fn clear(&mut self, worker: &str, rank: Option<u32>, tier: Option<Tier>) {
        let turn = self.turn;
        for rank in self.write(turn, true, |writer| writer.clear(worker, rank, tier)) {
            self.in_turns(|writer| writer.go_on_clearing(rank, turn));
        }
    }

    /// True if the worker's engine is known to keep offloaded blocks when its prefix cache is reset.
    #[must_use]
    pub fn resets_keep(&self, worker: &str) -> bool {
        self.index.resets_keep(worker)
    }

    /// True if the blocks that a worker announces on this tier are in a pool shared with other workers. These blocks
    /// stay when the worker's blocks are cleared.
    #[must_use]
    pub fn is_in_pool(&self, worker: &str, tier: Tier) -> bool {
        self.index.is_in_pool(worker, tier)
    }

    /// Records a rank's chunk length (blocks stored and loaded together) for a tier, like [`BlockIndex::learn_chunk`].
    pub fn learn_chunk(&self, worker: &str, rank: u32, tier: Tier, blocks: u32, is_gapless: bool) {
        self.index.learn_chunk(worker, rank, tier, blocks, is_gapless);
    }

    /// True if a rank holds a block with this prefix hash on its device. From the first call on, the rank's blocks are in
    /// the tables of what engines can load.
    pub fn is_on_device(&mut self, rank: &impl RankRef, prefix: u64) -> bool {
        self.write(self.turn, false, |writer| writer.is_on_device(rank, prefix))
    }

    /// Block hashes that a rank holds on a tier of its own beyond the device, each with true if the device holds an
    /// equal block with the same blocks before it.
    pub fn names_on(&mut self, rank: &impl RankRef, tier: Tier) -> Vec<(BlockHash, bool)> {
        self.write(self.turn, false, |writer| writer.names_on(rank, tier))
    }

    /// Applies a reset of an engine's prefix cache like [`BlockIndex::reset`].
    pub fn reset(&mut self, worker: &str, rank: Option<u32>) {
        let turn = self.turn;
        for rank in self.write(turn, true, |writer| writer.reset(worker, rank)) {
            self.in_turns(|writer| writer.go_on_clearing(rank, turn));
        }
    }

    /// Events that store all blocks of one rank, like [`BlockIndex::dump_rank`]; that method would deadlock during a
    /// series of changes.
    pub fn dump_rank(&mut self, worker: &str, rank: u32) -> Vec<Event> {
        self.write(self.turn, false, |writer| writer.copy_rank(worker, rank)).events(worker, rank)
    }

    /// Does work in parts, and lets other writers have the lock between them. `part` changes about 1,024 blocks and
    /// returns true if more work is left.
    fn in_turns(&mut self, part: impl Fn(&mut Writer) -> bool) {
        while self.write(1, false, &part) {
            self.left = 0;
        }
    }

    /// Completes earlier work that must be finished before a rank can store blocks on a tier or remove them from there.
    #[inline]
    fn prepare(&mut self, rank: &impl RankRef, tier: Tier, stores: bool) {
        if tier != Tier::Gpu {
            let turn = self.turn;
            self.in_turns(|writer| writer.prepare(writer.number_of(rank), tier, stores, turn));
        }
    }

    /// Stores a chain in parts, and lets other writers have the lock between them. The result equals one store, as a
    /// chain is stored block by block; before the first part, the index checks that it can number all blocks.
    #[inline]
    fn store_in_parts(
        &mut self,
        chain: Chain<'_>,
        store: impl Fn(&mut Writer, &mut Chain<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut next = Some(chain);
        while let Some(mut chain) = next {
            next = chain.split_off(self.turn);
            self.write(chain.len(), false, |writer| store(writer, &mut chain))?;
            if let Some(next) = &mut next {
                next.goes_on(&chain);
            }
        }
        Ok(())
    }

    #[inline]
    fn remove_parts<'p>(&mut self, rank: &impl RankRef, tier: Tier, parts: impl Iterator<Item = &'p [BlockHash]>) {
        for (i, part) in parts.enumerate() {
            self.write(part.len(), false, |writer| {
                writer.counters.removes += u64::from(i == 0);
                let rank = writer.number_of(rank);
                writer.remove(rank, tier, part);
            });
        }
    }

    fn write<T>(&mut self, blocks: usize, tidy_now: bool, change: impl FnOnce(&mut Writer) -> T) -> T {
        if self.left == 0 {
            self.left = self.turn;
            // To let go and lock again would be to overtake those who wait, as they have to wake up first.
            if let Some(writer) = &mut self.writer {
                MutexGuard::bump(writer);
            }
        }
        self.left = self.left.saturating_sub(blocks.max(1));
        let Self { index, writer, .. } = self;
        let writer = writer.get_or_insert_with(|| index.lock());
        let result = change(writer);
        writer.do_share();
        writer.tidy(&index.readers, tidy_now);
        result
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::handle::RankHandle;
    use crate::index::TURN;

    #[test]
    fn others_have_their_turn_while_changes_go_on() {
        let index = &BlockIndex::new(Config::default()).unwrap();
        let done = &AtomicBool::new(false);
        thread::scope(|scope| {
            let mut changes = index.changes();
            changes.store(&("a", 0), Tier::Gpu, None, &[BlockHash(1)], &[1]).unwrap();
            scope.spawn(move || {
                index.store("b", 0, Tier::Gpu, None, &[BlockHash(1)], &[1]).unwrap();
                done.store(true, Ordering::SeqCst);
            });
            let start = Instant::now();
            while !done.load(Ordering::SeqCst) {
                assert!(start.elapsed() < Duration::from_secs(60), "nobody else comes in");
                changes.remove(&("a", 0), Tier::Gpu, &[BlockHash(1)]);
                changes.store(&("a", 0), Tier::Gpu, None, &[BlockHash(1)], &[1]).unwrap();
            }
        });
        let held: Vec<_> = index.workers().into_iter().map(|(worker, blocks)| (worker.to_string(), blocks)).collect();
        assert_eq!(held, [("a".to_owned(), 1), ("b".to_owned(), 1)]);
    }

    #[test]
    fn others_have_their_turn_within_a_long_event() {
        let index = &BlockIndex::new(Config::default()).unwrap();
        let contents: Vec<u64> = (1..=100 * TURN as u64).collect();
        let names: Vec<_> = contents.iter().map(|&content| BlockHash(content)).collect();
        let part = 1..names.len() as u64;
        let (stored, removed) = (AtomicBool::new(false), AtomicBool::new(false));
        let is_over = &|| stored.load(Ordering::SeqCst) && removed.load(Ordering::SeqCst);
        thread::scope(|scope| {
            let start = Instant::now();
            let is_late = move || start.elapsed() > Duration::from_secs(60);
            let (names, contents) = (&names, &contents);
            scope.spawn(move || {
                while !is_over() && !is_late() {
                    index.store("w", 0, Tier::Gpu, None, names, contents).unwrap();
                    index.remove("w", 0, Tier::Gpu, names);
                }
                assert!(is_over(), "nobody else comes in");
            });
            let mut before = 0;
            while !is_over() && !is_late() {
                let now = index.ranks_of("w").first().map_or(0, |rank| rank.device_blocks);
                if part.contains(&before) && part.contains(&now) && now != before {
                    if now > before { &stored } else { &removed }.store(true, Ordering::SeqCst);
                }
                before = now;
            }
        });
        let stats = index.stats();
        assert_eq!((stats.blocks, stats.unlinked, stats.stores), (0, 0, stats.removes));
    }

    #[test]
    fn what_ends_a_rank_in_the_middle_of_a_long_event_ends_the_event() {
        let names: Vec<_> = (1..=6).map(BlockHash).collect();
        let all = |worker: &'static str, tier| Event::Clear { worker: worker.into(), rank: None, tier };
        let ends = [Event::Drop { worker: "w".into() }, all("w", None), all("w", Some(Tier::Gpu))];
        let others = [Event::Drop { worker: "v".into() }, all("v", None), all("w", Some(Tier::Cpu))];
        for (event, has_ended) in ends.iter().map(|it| (it, true)).chain(others.iter().map(|it| (it, false))) {
            let index = BlockIndex::new(Config::default()).unwrap();
            let mut first = Chain::new(None, &names, &[1, 2, 3, 4, 5, 6]).unwrap();
            let mut rest = first.split_off(4).unwrap();
            index.write(|writer| writer.store(&("w", 0), Tier::Gpu, &mut first)).unwrap();
            rest.goes_on(&first);
            index.apply(event).unwrap();
            if has_ended {
                index.store("w", 0, Tier::Gpu, None, &names[..1], &[1]).unwrap();
            }
            index.write(|writer| writer.store(&("w", 0), Tier::Gpu, &mut rest)).unwrap();
            let held = if has_ended { 1 } else { 6 };
            assert_eq!((index.stats().blocks, index.stats().unlinked), (held, 0), "{event:?}");
        }
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
                    changes.remove(handle, Tier::Gpu, &[BlockHash(9)]);
                    changes.store(handle, Tier::Gpu, None, &[BlockHash(1), BlockHash(2)], &[1, 2]).unwrap();
                    changes.remove(handle, Tier::Gpu, &[BlockHash(2)]);
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
        changes.store(&("a", 0), Tier::Gpu, None, &[BlockHash(1)], &[1]).unwrap();
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
        changes.store(&("a", 0), Tier::Gpu, None, &[BlockHash(1)], &[1]).unwrap();
        changes.store(&("b", 0), Tier::Gpu, None, &[BlockHash(2)], &[1]).unwrap();
        let dumped = changes.dump_rank("a", 0);
        changes.remove(&("a", 0), Tier::Gpu, &[BlockHash(1)]);
        assert_eq!(changes.dump_rank("a", 0), []);
        drop(changes);
        assert_eq!(index.dump_rank("a", 0), []);
        index.store("a", 0, Tier::Gpu, None, &[BlockHash(1)], &[1]).unwrap();
        assert_eq!((dumped.len(), index.dump_rank("a", 0)), (1, dumped));
    }

    #[test]
    fn a_store_of_unequal_lists_changes_nothing() {
        let index = BlockIndex::new(Config::default()).unwrap();
        let refused = index.changes().store(&("a", 0), Tier::Gpu, None, &[BlockHash(1)], &[]);
        assert_eq!(refused, Err(Error::LengthMismatch { block_hashes: 1, content_hashes: 0 }));
        assert!(index.workers().is_empty());
    }
}
