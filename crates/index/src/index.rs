//! [`BlockIndex`]: one writer at a time, any number of readers.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::error::Error;
use crate::find::{Match, find};
use crate::raw::Readers;
use crate::runs::ReaderEntry;
use crate::stats::{RankStats, Stats};
use crate::writer::Writer;

/// Configuration of an index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Tokens in a block. At least 1.
    pub block_size: u32,
    /// True if a block announced n times is held until it is removed n times, as vLLM announces physical copies. False:
    /// engines that announce a block once however many copies they have.
    pub count_copies: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { block_size: 16, count_copies: true }
    }
}

/// Blocks changed before others have their turn: a fraction of a millisecond.
pub(crate) const TURN: usize = 1024;
/// Blocks freed before others have their turn: a fraction of a millisecond.
const SLICE_OF_SETTLING: usize = 2048;

/// The exact index of who holds which blocks. See the crate's text.
///
/// All methods take `&self`. Calls that change something wait for each other; [`find`](Self::find) waits for nobody.
pub struct BlockIndex {
    config: Config,
    pub(crate) readers: Readers,
    writer: Mutex<Writer>,
    /// Number of blocks after which others have their turn to change something.
    pub(crate) turn: AtomicUsize,
    /// The writer's own is behind its lock; readers come in here.
    shown: Arc<ReaderEntry>,
}

impl BlockIndex {
    /// Steps for a slice of [`dump_in_slices`](Self::dump_in_slices) that takes less than a millisecond.
    pub const SLICE: usize = 3 << 10;

    /// An empty index.
    ///
    /// # Errors
    /// [`Error::BlockSize`] if the block size is 0.
    pub fn new(config: Config) -> Result<Self, Error> {
        if config.block_size == 0 {
            return Err(Error::BlockSize { got: 0 });
        }
        let readers = Readers::for_this_machine();
        let writer = Writer::new(config.count_copies, &readers);
        Ok(Self { config, readers, shown: writer.runs.shown.clone(), writer: Mutex::new(writer), turn: TURN.into() })
    }

    /// Configuration that the index was made with.
    #[must_use]
    pub fn config(&self) -> Config {
        self.config
    }

    /// Finds who holds how much of a prompt, given the content hash of each of its blocks.
    ///
    /// The answer borrows the index and keeps what it refers to from being freed: use it soon, or turn it into an
    /// [`OwnedMatch`](crate::OwnedMatch). While others write, each depth lies between the smallest and the largest
    /// that was true of that holder during the call. One exception: if a holder announces a block hash for another
    /// block than before, the old block may go before the new one counts.
    ///
    /// Waits for no writer. It looks again at what a writer has finished changing while it looked: at one run's levels,
    /// or at all if a worker came, went, or first offloaded.
    #[must_use]
    pub fn find(&self, content_hashes: &[u64]) -> Match<'_> {
        find(&self.readers, &self.shown.roster, &self.shown.children, content_hashes)
    }

    /// Frees what was held until it was cleared or dropped. That happens a little at a time in the changes that follow,
    /// as it may be much; this does all there is to do, and lets others change the index meanwhile.
    pub fn settle(&self) {
        loop {
            // What is freed at the end of a change may be tables that go in steps.
            self.write_after(true, |writer| writer.do_some(SLICE_OF_SETTLING));
            if !self.write(|writer| writer.has_more_to_do()) {
                return;
            }
        }
    }

    /// Sizes and counts, after [`settle`](Self::settle). Writers wait for a time that depends on the number of ranks alone.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.settle();
        let mut stats = self.write(|writer| writer.stats());
        stats.bytes += (self.readers.bytes() + size_of::<Self>()) as u64;
        stats
    }

    /// Every rank of every worker, by name and number, with what it holds. Writers wait for a time that depends on the
    /// number of ranks alone.
    #[must_use]
    pub fn ranks(&self) -> Vec<RankStats> {
        let mut ranks = self.write(|writer| writer.ranks());
        ranks.sort_unstable_by(|a, b| (&a.worker, a.rank).cmp(&(&b.worker, b.rank)));
        ranks
    }

    /// The same of one worker, in any order; nothing if it is not known.
    #[must_use]
    pub fn ranks_of(&self, worker: &str) -> Vec<RankStats> {
        self.write(|writer| writer.ranks_of(worker))
    }

    /// Every worker, by name, with the number of blocks it holds.
    #[must_use]
    pub fn workers(&self) -> Vec<(Box<str>, u64)> {
        self.write(|writer| writer.workers())
    }

    pub(crate) fn write<T>(&self, change: impl FnOnce(&mut Writer) -> T) -> T {
        self.write_after(false, change)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Writer> {
        // If a bug has panicked inside a change, readers are as safe as before, and refusing all further events would
        // make every answer wrong instead of perhaps one. So it is well that this lock is not poisoned.
        self.writer.lock()
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_locked(&self) -> bool {
        self.writer.is_locked()
    }

    /// From so many blocks below a hole on they go together, at least 1. For tests, which have few.
    #[doc(hidden)]
    pub fn branch_from(&self, blocks: u64) {
        self.write(|writer| writer.least_branch = blocks);
    }

    /// A rank of more blocks than these gets names of its own in steps. For tests, which have few.
    #[doc(hidden)]
    pub fn own_names_at_once(&self, blocks: u64) {
        self.write(|writer| writer.most_own_at_once = blocks);
    }

    /// After so many blocks of an event others have their turn, at least 1. For tests, whose events are short.
    #[doc(hidden)]
    pub fn turn_after(&self, blocks: usize) {
        self.turn.store(blocks.max(1), Ordering::Relaxed);
    }

    pub(crate) fn write_after<T>(&self, tidy_now: bool, change: impl FnOnce(&mut Writer) -> T) -> T {
        let mut writer = self.lock();
        let result = change(&mut writer);
        writer.do_share();
        writer.tidy(&self.readers, tidy_now);
        result
    }
}

impl fmt::Debug for BlockIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockIndex").field("config", &self.config).finish_non_exhaustive()
    }
}
