//! Frontier of a stream: blocks that the engine is proved to hold although their contents are unknown, and the engine's
//! removals since.
//!
//! A store event whose parent block is unknown proves that the engine held the parent, and all blocks before it, at
//! that moment. The block hashes proved in this way are the *frontier*. Moments are counted in removed blocks: the age
//! of a proof is the number of blocks removed after it. A proved block is still held if it was not removed since the
//! proof. For this test, all removed block hashes since the oldest proof are remembered, up to a limit. A proof from
//! before the remembered removals has expired.

use std::collections::VecDeque;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use kvatlas_index::BlockHash;

/// Maximum number of removed block hashes remembered per stream; they occupy 1 MiB.
pub const MOST_REMOVALS: usize = 1 << 17;
/// Maximum number of block hashes on the frontier (blocks proved to be held, with unknown contents) kept per stream.
pub const MOST_PROOFS: usize = 1 << 15;
/// Minimum interval, in time, between two stream positions that are recorded with their times.
const BETWEEN_TIMES: Duration = Duration::from_millis(100);
/// Maximum number of recorded points in time; they cover at least the last quarter of an hour.
const MOST_TIMES: usize = 9_000;

/// Position in an engine's event stream, counted in blocks removed before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Moment(u64);

/// State of a [`Frontier`] from which another one can continue, for snapshots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FrontierState {
    /// Block hashes that the engine was proved to hold, each with the number of blocks removed after the proof.
    pub proofs: Vec<(BlockHash, usize)>,
    /// Block hashes of the last removed blocks, oldest first.
    pub removals: Vec<BlockHash>,
}

/// Frontier of a stream: block hashes of blocks that the engine is proved to hold and whose contents are unknown, with
/// the removals since the oldest proof.
#[derive(Debug)]
pub struct Frontier {
    /// Block hashes on the frontier, each with the latest moment at which the block and all blocks before it were
    /// proved to be held.
    proofs: HashMap<BlockHash, Moment>,
    /// Block hashes that were proved for the first time or again since the last [`take_fresh`](Self::take_fresh).
    fresh: HashSet<BlockHash>,
    /// Block hashes of the last removed blocks, oldest first.
    removals: VecDeque<BlockHash>,
    /// Position in the stream just before the oldest remembered removal.
    since: Moment,
    most_removals: usize,
    /// Recorded points in time, each with the stream position reached then, oldest first.
    times: VecDeque<(Duration, Moment)>,
    /// Number of proofs of held blocks that expired (because of too many removals since) before the blocks' contents
    /// were known.
    expired: u64,
}

impl Default for Frontier {
    fn default() -> Self {
        Self::with_removals(MOST_REMOVALS)
    }
}

impl Frontier {
    /// Creates an empty frontier (set of blocks proved to be held, with unknown contents) that remembers at most
    /// `most_removals` removed blocks.
    #[must_use]
    pub fn with_removals(most_removals: usize) -> Self {
        Self {
            proofs: HashMap::new(),
            fresh: HashSet::new(),
            removals: VecDeque::new(),
            since: Moment(0),
            most_removals,
            times: VecDeque::new(),
            expired: 0,
        }
    }

    /// Returns the current position in the stream.
    #[must_use]
    pub fn now(&self) -> Moment {
        Moment(self.since.0 + self.removals.len() as u64)
    }

    /// Records the removal of blocks, including blocks that were never announced.
    pub fn removed(&mut self, names: &[BlockHash]) {
        self.removals.extend(names);
        let beyond = self.removals.len().saturating_sub(self.most_removals);
        self.removals.drain(..beyond);
        self.since.0 += beyond as u64;
    }

    /// Records the proof that the block `name` and all blocks before it were held at a position in the stream.
    pub fn prove(&mut self, name: BlockHash, at: Moment) {
        if self.proofs.len() >= MOST_PROOFS && !self.proofs.contains_key(&name) {
            self.expire();
            if self.proofs.len() >= MOST_PROOFS {
                self.expired += 1;
                return;
            }
        }
        let proof = self.proofs.entry(name).or_insert(at);
        *proof = at.max(*proof);
        self.fresh.insert(name);
    }

    /// Returns the latest position in the stream at which the block `name` was proved to be held; `None` if no such
    /// evidence is known, or so many blocks were removed since that the evidence has expired.
    #[must_use]
    pub fn proof(&self, name: BlockHash) -> Option<Moment> {
        self.proofs.get(&name).copied().filter(|proof| *proof >= self.since)
    }

    /// Removes a block from the frontier (blocks proved to be held, with unknown contents), because the contents of the
    /// block and of those before it are now known.
    pub fn settle(&mut self, name: BlockHash) {
        self.proofs.remove(&name);
    }

    /// Returns for each block hash true if the block was removed after a position in the stream; `None` if the position
    /// is before the remembered removals.
    #[must_use]
    pub fn find_removed(&self, moment: Moment, names: &[BlockHash]) -> Option<Vec<bool>> {
        let skip = usize::try_from(moment.0.checked_sub(self.since.0)?).ok()?;
        let removed = self.removals.range(skip.min(self.removals.len())..);
        let mut gone = vec![false; names.len()];
        if removed.len() == 0 {
            return Some(gone);
        }
        let places: HashMap<BlockHash, usize> = names.iter().copied().zip(0..).collect();
        for at in removed.filter_map(|name| places.get(name)) {
            gone[*at] = true;
        }
        Some(gone)
    }

    /// Records `time` as the time of the current position in the stream. Times must not decrease.
    pub fn pass(&mut self, time: Duration) {
        if self.times.back().is_none_or(|(last, _)| time >= *last + BETWEEN_TIMES) {
            if self.times.len() == MOST_TIMES {
                self.times.pop_front();
            }
            self.times.push_back((time, self.now()));
        }
    }

    /// Returns the latest recorded position in the stream that was reached no later than `time`; `None` if `time` is
    /// before the recorded times.
    #[must_use]
    pub fn moment_at(&self, time: Duration) -> Option<Moment> {
        let after = self.times.partition_point(|(at, _)| *at <= time);
        let (_, moment) = self.times.get(after.checked_sub(1)?)?;
        (*moment >= self.since).then_some(*moment)
    }

    /// Removes and returns the block hashes that were proved to be held, for the first time or again, since the last
    /// call.
    pub fn take_fresh(&mut self) -> Vec<BlockHash> {
        let fresh = std::mem::take(&mut self.fresh);
        fresh.into_iter().filter(|name| self.proofs.contains_key(name)).collect()
    }

    /// Iterates over all block hashes on the frontier: blocks proved to be held, with unknown contents.
    pub fn names(&self) -> impl Iterator<Item = BlockHash> {
        self.proofs.keys().copied()
    }

    /// Returns the number of block hashes on the frontier: blocks proved to be held, with unknown contents.
    #[must_use]
    pub fn len(&self) -> usize {
        self.proofs.len()
    }

    /// True if the frontier is empty: the contents of all blocks proved to be held are known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.proofs.is_empty()
    }

    /// Drops proofs of held blocks that are older than the remembered removals, and counts them as expired.
    pub fn expire(&mut self) {
        let before = self.proofs.len();
        self.proofs.retain(|_, proof| *proof >= self.since);
        self.expired += (before - self.proofs.len()) as u64;
    }

    /// Returns the number of proofs of held blocks that expired before the blocks' contents were known. A proof expires
    /// when more blocks were removed since than are remembered.
    #[must_use]
    pub fn expired(&self) -> u64 {
        self.expired
    }

    /// Drops the remembered removals if there are no proofs of held blocks. Blocks can then no longer be proved for
    /// earlier positions in the stream.
    pub fn rest(&mut self) {
        if self.proofs.is_empty() {
            self.forget();
        }
    }

    /// Drops all proofs of held blocks and all removals, because the engine's blocks are gone or a batch was missed.
    pub fn forget(&mut self) {
        self.since = Moment(self.now().0 + 1);
        let (since, expired) = (self.since, self.expired);
        *self = Self { since, expired, ..Self::with_removals(self.most_removals) };
    }

    /// Returns the state from which another frontier can continue at the current position in the stream. The state has
    /// at most `removals` of the last removals, and at most `proofs` of the newest proofs that these removals cover.
    ///
    /// Recorded times are not part of the state, so the new frontier ignores answers to prompts that were sent before.
    #[must_use]
    pub fn kept(&self, removals: usize, proofs: usize) -> FrontierState {
        let now = self.now();
        let ago = |moment: Moment| usize::try_from(now.0 - moment.0).unwrap_or(usize::MAX);
        let most = removals.min(self.removals.len());
        let mut kept: Vec<_> = self.proofs.iter().map(|(name, moment)| (*name, ago(*moment))).collect();
        kept.retain(|(_, ago)| *ago <= most);
        kept.sort_unstable_by_key(|(name, ago)| (*ago, name.0));
        kept.truncate(proofs);
        let needed = kept.last().map_or(0, |(_, ago)| *ago);
        let removals = self.removals.range(self.removals.len() - needed..).copied().collect();
        FrontierState { proofs: kept, removals }
    }

    /// Replaces all proofs of held blocks and all removals by those saved from another frontier. Proofs that are older
    /// than the saved removals are left out.
    pub fn resume(&mut self, kept: &FrontierState) {
        *self = Self::with_removals(self.most_removals);
        self.removed(&kept.removals);
        for (name, ago) in &kept.proofs {
            if *ago <= self.removals.len() {
                self.prove(*name, Moment(self.now().0 - *ago as u64));
            }
        }
    }

    /// Returns the memory allocated for proofs of held blocks, removals and recorded times, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.proofs.allocation_size()
            + self.fresh.allocation_size()
            + self.removals.capacity() * size_of::<BlockHash>()
            + self.times.capacity() * size_of::<(Duration, Moment)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(of: &[u64]) -> Vec<BlockHash> {
        of.iter().copied().map(BlockHash).collect()
    }

    #[test]
    fn what_was_removed_since_a_proof() {
        let mut frontier = Frontier::with_removals(4);
        frontier.removed(&names(&[1, 2]));
        frontier.prove(BlockHash(9), frontier.now());
        frontier.removed(&names(&[2, 3]));
        let proof = frontier.proof(BlockHash(9)).expect("proved");
        assert_eq!(frontier.find_removed(proof, &names(&[1, 2, 3, 4])), Some(vec![false, true, true, false]));
        frontier.removed(&names(&[7, 7]));
        assert_eq!(frontier.find_removed(proof, &names(&[3])), Some(vec![true]), "all of them are remembered");
        frontier.removed(&names(&[7]));
        assert_eq!((frontier.find_removed(proof, &names(&[3])), frontier.proof(BlockHash(9))), (None, None));
        frontier.expire();
        assert_eq!((frontier.len(), frontier.expired()), (0, 1));
    }

    #[test]
    fn the_newest_proof_counts() {
        let mut frontier = Frontier::default();
        frontier.prove(BlockHash(9), frontier.now());
        assert_eq!(frontier.take_fresh(), names(&[9]));
        frontier.removed(&names(&[1]));
        let now = frontier.now();
        frontier.prove(BlockHash(9), now);
        frontier.prove(BlockHash(9), Moment(0));
        assert_eq!(frontier.proof(BlockHash(9)), Some(now));
        assert_eq!(frontier.take_fresh(), names(&[9]));
        frontier.prove(BlockHash(9), now);
        frontier.settle(BlockHash(9));
        assert!(frontier.take_fresh().is_empty());
    }

    #[test]
    fn what_is_forgotten_proves_nothing() {
        let mut frontier = Frontier::default();
        let old = frontier.now();
        frontier.prove(BlockHash(9), old);
        frontier.pass(Duration::from_secs(1));
        frontier.forget();
        assert_eq!((frontier.proof(BlockHash(9)), frontier.find_removed(old, &[])), (None, None));
        assert_eq!(frontier.moment_at(Duration::from_secs(5)), None);
        frontier.pass(Duration::from_secs(6));
        assert_eq!(frontier.moment_at(Duration::from_secs(5)), None);
        assert_eq!(frontier.moment_at(Duration::from_secs(6)), Some(frontier.now()));
    }

    #[test]
    fn another_one_goes_on() {
        let mut frontier = Frontier::with_removals(8);
        frontier.removed(&names(&[1, 2]));
        frontier.prove(BlockHash(9), frontier.now());
        frontier.removed(&names(&[3, 4]));
        frontier.prove(BlockHash(8), frontier.now());
        frontier.removed(&names(&[5]));
        frontier.prove(BlockHash(7), frontier.now());
        let all = frontier.kept(8, 8);
        let proofs = vec![(BlockHash(7), 0), (BlockHash(8), 1), (BlockHash(9), 3)];
        assert_eq!((&all.proofs, &all.removals), (&proofs, &names(&[3, 4, 5])), "the first two came before any proof");
        let mut next = Frontier::with_removals(8);
        next.removed(&names(&[6; 5]));
        next.resume(&all);
        for name in [7, 8, 9].map(BlockHash) {
            let gone = |one: &Frontier| one.find_removed(one.proof(name).expect("proved"), &names(&[1, 2, 3, 4, 5, 6]));
            assert_eq!(gone(&next), gone(&frontier), "{name:?}");
        }
        assert_eq!(next.take_fresh().len(), 3, "they are looked at again");
        assert_eq!(next.moment_at(Duration::from_secs(9)), None);
        // With a limit, the newest: of older ones it could not be said what was removed since.
        assert_eq!(frontier.kept(2, 8), FrontierState { proofs: proofs[..2].to_vec(), removals: names(&[5]) });
        assert_eq!(frontier.kept(8, 1), FrontierState { proofs: proofs[..1].to_vec(), removals: vec![] });
        assert_eq!(Frontier::default().kept(8, 8), FrontierState::default());
        // A file from elsewhere.
        next.resume(&FrontierState { proofs: vec![(BlockHash(9), 4), (BlockHash(8), 3)], removals: names(&[3, 4, 5]) });
        assert_eq!((next.proof(BlockHash(9)), next.len()), (None, 1));
        let mut few = Frontier::with_removals(2);
        few.resume(&all);
        assert_eq!((few.proof(BlockHash(9)), few.len()), (None, 2));
    }

    #[test]
    fn moments_are_never_later_than_their_times() {
        let mut frontier = Frontier::with_removals(10);
        let at = Duration::from_millis;
        frontier.pass(at(0));
        frontier.removed(&names(&[1]));
        frontier.pass(at(50));
        frontier.removed(&names(&[2]));
        frontier.pass(at(200));
        let gone = |frontier: &Frontier, time| {
            frontier.find_removed(frontier.moment_at(time)?, &names(&[1, 2])).map(|gone| (gone[0], gone[1]))
        };
        assert_eq!(gone(&frontier, at(199)), Some((true, true)), "the first was removed before, but nobody noted when");
        assert_eq!(gone(&frontier, at(200)), Some((false, false)));
        frontier.removed(&names(&[0; 10]));
        assert_eq!(gone(&frontier, at(199)), None);
    }
}
