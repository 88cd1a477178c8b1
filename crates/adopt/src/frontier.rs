//! Frontier of a stream: names of blocks that it has proved to be held, without their contents, and its removals since.
//!
//! A store below a block that is not held proves that the engine held that block, and all before it, at that moment.
//! These names are the *frontier*. Moments are counted in removals: a proof is as old as the number of removals that
//! came after it. Of all blocks proved in this way, those are still held that were not removed since; for this, all
//! removals since the oldest proof are remembered, known names and unknown ones alike, up to a limit. A proof from
//! before the remembered removals has expired.

use std::collections::VecDeque;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use kvatlas_index::BlockHash;

/// Maximum number of removals remembered per stream: 1 MiB.
pub const MOST_REMOVALS: usize = 1 << 17;
/// Maximum number of proved block names of unknown contents (the frontier) kept per stream.
pub const MOST_PROOFS: usize = 1 << 15;
/// Minimum time between two recorded times.
const BETWEEN_TIMES: Duration = Duration::from_millis(100);
/// Maximum number of recorded times kept: those of the last quarter of an hour at least.
const MOST_TIMES: usize = 9_000;

/// Position in an engine's event stream, as the number of removed blocks before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Moment(u64);

/// State of a frontier from which another frontier can continue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FrontierState {
    /// Names of blocks that were proved to be held, each with the number of removals after its proof.
    pub proofs: Vec<(BlockHash, usize)>,
    /// Names of the last removed blocks, oldest first.
    pub removals: Vec<BlockHash>,
}

/// Frontier of a stream: block names that it has proved to be held, of unknown contents, with the removals since the
/// oldest proof.
#[derive(Debug)]
pub struct Frontier {
    /// Names with the latest moment at which they and all blocks before them were proved to be held.
    proofs: HashMap<BlockHash, Moment>,
    /// Names added or proved again since the last [`take_fresh`](Self::take_fresh).
    fresh: HashSet<BlockHash>,
    /// Names of the last removed blocks, oldest first.
    removals: VecDeque<BlockHash>,
    /// Moment before the oldest remembered removal.
    since: Moment,
    most_removals: usize,
    /// Recorded times with the moments reached then, oldest first.
    times: VecDeque<(Duration, Moment)>,
    /// Number of proofs that expired before their names were known.
    expired: u64,
}

impl Default for Frontier {
    fn default() -> Self {
        Self::with_removals(MOST_REMOVALS)
    }
}

impl Frontier {
    /// Creates a frontier that remembers at most `most_removals` removals.
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

    /// Present moment of the stream.
    #[must_use]
    pub fn now(&self) -> Moment {
        Moment(self.since.0 + self.removals.len() as u64)
    }

    /// Records the removal of blocks, whether or not their names are known.
    pub fn removed(&mut self, names: &[BlockHash]) {
        self.removals.extend(names);
        let beyond = self.removals.len().saturating_sub(self.most_removals);
        self.removals.drain(..beyond);
        self.since.0 += beyond as u64;
    }

    /// Records the proof that `name` and all blocks before it were held at a moment.
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

    /// Latest moment at which `name` was proved; `None` if it is not on the frontier, or its proof has expired.
    #[must_use]
    pub fn proof(&self, name: BlockHash) -> Option<Moment> {
        self.proofs.get(&name).copied().filter(|proof| *proof >= self.since)
    }

    /// Takes a name off the frontier, because its blocks are now known.
    pub fn settle(&mut self, name: BlockHash) {
        self.proofs.remove(&name);
    }

    /// Tells for each name whether it was removed after a moment; `None` if the moment is before the remembered
    /// removals.
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

    /// Records that `time` is the time of the present moment. Times do not go back.
    pub fn pass(&mut self, time: Duration) {
        if self.times.back().is_none_or(|(last, _)| time >= *last + BETWEEN_TIMES) {
            if self.times.len() == MOST_TIMES {
                self.times.pop_front();
            }
            self.times.push_back((time, self.now()));
        }
    }

    /// Latest recorded moment that was not after `time`; `None` if the time is before those kept.
    #[must_use]
    pub fn moment_at(&self, time: Duration) -> Option<Moment> {
        let after = self.times.partition_point(|(at, _)| *at <= time);
        let (_, moment) = self.times.get(after.checked_sub(1)?)?;
        (*moment >= self.since).then_some(*moment)
    }

    /// Takes the names of blocks that were proved to be held, or proved again, since the last call.
    pub fn take_fresh(&mut self) -> Vec<BlockHash> {
        let fresh = std::mem::take(&mut self.fresh);
        fresh.into_iter().filter(|name| self.proofs.contains_key(name)).collect()
    }

    /// All names on the frontier: of blocks proved to be held whose contents are unknown.
    pub fn names(&self) -> impl Iterator<Item = BlockHash> {
        self.proofs.keys().copied()
    }

    /// Number of names on the frontier: of blocks proved to be held whose contents are unknown.
    #[must_use]
    pub fn len(&self) -> usize {
        self.proofs.len()
    }

    /// True if no name is on the frontier: the contents of all blocks proved to be held are known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.proofs.is_empty()
    }

    /// Drops proofs from before the remembered removals.
    pub fn expire(&mut self) {
        let before = self.proofs.len();
        self.proofs.retain(|_, proof| *proof >= self.since);
        self.expired += (before - self.proofs.len()) as u64;
    }

    /// Number of proofs that expired before their names were known.
    #[must_use]
    pub fn expired(&self) -> u64 {
        self.expired
    }

    /// Drops the remembered removals if there are no proofs, so that proofs of earlier moments are no longer possible.
    pub fn rest(&mut self) {
        if self.proofs.is_empty() {
            self.forget();
        }
    }

    /// Drops all proofs and removals, because the engine's blocks are gone or a batch was missed.
    pub fn forget(&mut self) {
        self.since = Moment(self.now().0 + 1);
        let (since, expired) = (self.since, self.expired);
        *self = Self { since, expired, ..Self::with_removals(self.most_removals) };
    }

    /// State from which another frontier continues at this moment of the stream: at most `removals` of the last
    /// removals, and at most `proofs` proofs that are no older, the newest first. The times of moments are not
    /// included, so the new frontier ignores answers to prompts sent before.
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

    /// Continues from the state of another frontier. Entries that contradict each other are left out.
    pub fn resume(&mut self, kept: &FrontierState) {
        *self = Self::with_removals(self.most_removals);
        self.removed(&kept.removals);
        for (name, ago) in &kept.proofs {
            if *ago <= self.removals.len() {
                self.prove(*name, Moment(self.now().0 - *ago as u64));
            }
        }
    }

    /// Memory allocated for proofs, removals and times, in bytes.
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
