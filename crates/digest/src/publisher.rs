//! Publisher of a site's digests: the marks (prefix hashes at regular distances) of its ranks' blocks, and their
//! changes since the last digest.
//!
//! Marks are computed from copies of ranks' blocks, which the index gives in slices, and not from events: the index has
//! already resolved order, gaps, copies, holes and restarts, and a second interpretation of events could differ. A rank
//! is copied again only if its fingerprint, a hash of its blocks, has changed.

use std::sync::Arc;

use hashbrown::HashMap;
use kvatlas_index::{BlockIndex, CopyState, RankCopier, RankCopy};

use crate::Error;
use crate::marks::marks_of_rank;
use crate::message::{Digest, LONGEST_NAME, word};

/// Publisher of the digests of one site's index.
#[derive(Debug)]
pub struct Publisher {
    site: String,
    life: u64,
    seq: u64,
    grain: u32,
    ranks: HashMap<(Arc<str>, u32), Rank>,
    /// Number of ranks that have each mark (prefix hash).
    marks: HashMap<u64, u32>,
    /// Marks (prefix hashes) that were added or removed since the last digest. The value is true if the mark was in the
    /// last published set.
    changed: HashMap<u64, bool>,
    /// Checksum of the published marks (prefix hashes): the sum of [`word`] over all marks.
    word: u64,
    /// Position of the rank that the next call of [`Publisher::look`] copies even if its fingerprint has not changed.
    turn: usize,
}

#[derive(Debug, Default)]
struct Rank {
    fingerprint: u64,
    marks: Box<[u64]>,
    seen: bool,
}

/// Counts of ranks that one call of [`Publisher::look`] found in the index, and copied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LookCounts {
    /// Number of ranks in the site's index.
    pub ranks: usize,
    /// Number of ranks whose blocks were copied from the site's index.
    pub copied: usize,
}

impl Publisher {
    /// Creates a publisher for a site with this name. `life`: a number that no earlier publisher of the name used.
    ///
    /// # Errors
    ///
    /// [`Error::Grain`] if the grain is 0, [`Error::Name`] if the name is empty or too long.
    pub fn new(site: &str, life: u64, grain: u32) -> Result<Self, Error> {
        if grain == 0 {
            return Err(Error::Grain);
        }
        if site.is_empty() || site.len() > LONGEST_NAME {
            return Err(Error::Name { got: site.len(), most: LONGEST_NAME });
        }
        Ok(Self {
            site: site.to_owned(),
            life,
            seq: 0,
            grain,
            ranks: HashMap::new(),
            marks: HashMap::new(),
            changed: HashMap::new(),
            word: 0,
            turn: 0,
        })
    }

    /// Name of the site (a fleet with its own index) whose digests are published.
    #[must_use]
    pub fn site(&self) -> &str {
        &self.site
    }

    /// Number of blocks between marks (prefix hashes).
    #[must_use]
    pub fn grain(&self) -> u32 {
        self.grain
    }

    /// Number of marks (prefix hashes) that the site has now.
    #[must_use]
    pub fn marks(&self) -> usize {
        self.marks.len()
    }

    /// Number of marks (prefix hashes) that only one worker has, for each worker, as of the last [`Publisher::look`].
    #[must_use]
    pub fn sole_marks(&self) -> Vec<(Arc<str>, usize)> {
        let mut by_worker: HashMap<&Arc<str>, Vec<&Rank>> = HashMap::new();
        for ((worker, _), rank) in &self.ranks {
            by_worker.entry(worker).or_default().push(rank);
        }
        let has = |mark: &u64, ranks: u32| self.marks.get(mark) == Some(&ranks);
        let count = |ranks: &[&Rank]| match ranks {
            [only] => only.marks.iter().filter(|mark| has(mark, 1)).count(),
            several => {
                // A mark of several ranks is lost with them, as they are one worker's.
                let mut own: HashMap<u64, u32> = HashMap::new();
                several.iter().flat_map(|rank| &*rank.marks).for_each(|mark| *own.entry(*mark).or_default() += 1);
                own.iter().filter(|(mark, ranks)| has(mark, **ranks)).count()
            }
        };
        by_worker.into_iter().map(|(worker, ranks)| (worker.clone(), count(&ranks))).collect()
    }

    /// Updates the marks (prefix hashes) from the index, by copying the blocks of ranks in slices. Each slice stops the
    /// index's writers for less than a millisecond; `between` is called between two slices.
    ///
    /// Ranks for which `usable` is false, because their event streams are not trusted, count as empty.
    ///
    /// One rank per call, in turn, is copied even if its fingerprint has not changed: a fingerprint is computed from
    /// block hashes, and an engine may reuse a block hash for another block.
    pub fn look(
        &mut self,
        index: &Arc<BlockIndex>,
        usable: impl Fn(&str, u32) -> bool,
        mut between: impl FnMut(),
    ) -> LookCounts {
        let mut ranks = index.ranks();
        ranks.retain(|rank| usable(&rank.worker, rank.rank));
        let turn = self.turn % ranks.len().max(1);
        self.turn = turn + 1;
        let mut looked = LookCounts { ranks: ranks.len(), copied: 0 };
        for (at, stats) in ranks.iter().enumerate() {
            let rank = self.ranks.entry((stats.worker.clone(), stats.rank)).or_default();
            rank.seen = true;
            if rank.fingerprint == stats.fingerprint && at != turn {
                continue;
            }
            // A change between the look at the fingerprint and the copy has the rank copied once more.
            rank.fingerprint = stats.fingerprint;
            let mut copier = RankCopier::new(index.clone(), &stats.worker, stats.rank);
            let copy = loop {
                match copier.step(BlockIndex::SLICE) {
                    CopyState::More(more) => copier = more,
                    CopyState::Done(done) => break done.sorted(),
                }
                between();
            };
            self.set(&stats.worker, stats.rank, &copy);
            between();
            looked.copied += 1;
        }
        let gone: Vec<_> = self.ranks.iter().filter(|(_, rank)| !rank.seen).map(|(name, _)| name.clone()).collect();
        for name in gone {
            if let Some(rank) = self.ranks.remove(&name) {
                self.replace(&rank.marks, &[]);
            }
        }
        self.ranks.values_mut().for_each(|rank| rank.seen = false);
        looked
    }

    fn set(&mut self, worker: &Arc<str>, rank: u32, copy: &RankCopy) {
        let new: Box<[u64]> = marks_of_rank(copy, self.grain).into();
        let Some(entry) = self.ranks.get_mut(&(worker.clone(), rank)) else { return };
        let old = std::mem::replace(&mut entry.marks, new.clone());
        self.replace(&old, &new);
    }

    /// Replaces the marks (prefix hashes) `old` of a rank with `new`; each list is in increasing order.
    fn replace(&mut self, old: &[u64], new: &[u64]) {
        let (mut old, mut new) = (old.iter().copied().peekable(), new.iter().copied().peekable());
        loop {
            match (old.peek().copied(), new.peek().copied()) {
                (None, None) => return,
                (Some(gone), came) if came.is_none_or(|came| gone < came) => {
                    self.lose(gone);
                    old.next();
                }
                (gone, Some(came)) if gone.is_none_or(|gone| came < gone) => {
                    self.gain(came);
                    new.next();
                }
                _ => {
                    old.next();
                    new.next();
                }
            }
        }
    }

    fn gain(&mut self, mark: u64) {
        let ranks = self.marks.entry(mark).or_default();
        *ranks += 1;
        if *ranks == 1 {
            self.changed.entry(mark).or_insert(false);
        }
    }

    fn lose(&mut self, mark: u64) {
        let Some(ranks) = self.marks.get_mut(&mark) else { return };
        *ranks -= 1;
        if *ranks == 0 {
            self.marks.remove(&mark);
            self.changed.entry(mark).or_insert(true);
        }
    }

    /// Creates the next digest, with the changes since the last one. A digest without changes must be sent, too, as a
    /// sign of life.
    pub fn delta(&mut self) -> Digest {
        let (mut removed, mut added) = (Vec::new(), Vec::new());
        for (mark, was) in self.changed.drain() {
            match (was, self.marks.contains_key(&mark)) {
                (true, false) => removed.push(mark),
                (false, true) => added.push(mark),
                _ => {}
            }
        }
        // What was much once is not kept for ever.
        self.changed.shrink_to(1 << 10);
        removed.sort_unstable();
        added.sort_unstable();
        self.word = removed.iter().fold(self.word, |sum, &mark| sum.wrapping_sub(word(mark)));
        self.word = added.iter().fold(self.word, |sum, &mark| sum.wrapping_add(word(mark)));
        self.seq += 1;
        self.digest(false, removed, added)
    }

    /// Creates a digest with all marks (prefix hashes) of the site, for an index of sites that has missed an earlier
    /// digest.
    pub fn whole(&mut self) -> Digest {
        self.delta();
        let mut marks: Vec<u64> = self.marks.keys().copied().collect();
        marks.sort_unstable();
        self.digest(true, Vec::new(), marks)
    }

    fn digest(&self, whole: bool, removed: Vec<u64>, added: Vec<u64>) -> Digest {
        let Self { life, seq, word, grain, .. } = *self;
        Digest { site: self.site.clone(), whole, life, seq, word, grain, removed, added }
    }

    /// Approximate memory used by the publisher, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let of_ranks: usize = self.ranks.values().map(|rank| 8 * rank.marks.len() + 64).sum();
        of_ranks + 17 * self.marks.capacity() + 17 * self.changed.capacity()
    }
}
