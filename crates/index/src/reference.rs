//! Reference implementation of the index of cached KV blocks: slow and small, so that its correctness is easy to see.
//!
//! This module defines the correct results. Property tests and the fuzzer compare the production index with it. It
//! therefore shares no optimization with the production index: it keeps two maps for each rank, and a lookup starts at
//! the first block of a prompt and looks up each following block in a map.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::{BlockHash, Error, Event, Tier, View};

/// Content of a block: the block hash of its parent (None for the first block of a prompt) and its own content hash. If
/// two announcements of one block hash have equal contents, they announce the same block.
type Content = (Option<BlockHash>, u64);

/// Blocks that one data-parallel rank of a worker holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rank {
    /// Blocks in device memory, by block hash, with the number of announced copies.
    device: BTreeMap<BlockHash, (Content, u64)>,
    /// Blocks on other tiers, by block hash, with the number of copies on each tier.
    offloaded: BTreeMap<BlockHash, (Content, BTreeMap<Tier, u64>)>,
}

impl Rank {
    fn view(&self, view: View) -> BTreeMap<BlockHash, Content> {
        let mut blocks: BTreeMap<_, _> = self.device.iter().map(|(&name, &(content, _))| (name, content)).collect();
        let counts = |claims: &BTreeMap<Tier, u64>| claims.keys().any(|&tier| View::from(tier) as u8 <= view as u8);
        let offloaded = self.offloaded.iter().filter(|(_, (_, claims))| counts(claims));
        blocks.extend(offloaded.map(|(&name, &(content, _))| (name, content)));
        blocks
    }
}

/// Number of leading blocks of `query` (content hashes of a prompt's blocks) that are among `blocks`. A block continues
/// the block whose block hash it names as its parent.
fn depth(blocks: &BTreeMap<BlockHash, Content>, query: &[u64]) -> u32 {
    let mut frontier: BTreeSet<Option<BlockHash>> = BTreeSet::from([None]);
    for (depth, &wanted) in (0..).zip(query) {
        frontier = blocks
            .iter()
            .filter(|(_, (parent, content))| *content == wanted && frontier.contains(parent))
            .map(|(&name, _)| Some(name))
            .collect();
        if frontier.is_empty() {
            return depth;
        }
    }
    query.len() as u32
}

/// Reference index, which keeps two maps for each rank. It has the same methods as [`crate::BlockIndex`], but those
/// that change it need `&mut self`.
#[derive(Clone, Debug, Default)]
pub struct ReferenceIndex {
    count_copies: bool,
    /// Workers in order of registration, each with its ranks.
    workers: Vec<(Arc<str>, BTreeMap<u32, Rank>)>,
    /// Number of blocks, on the device and on other tiers, whose block hash was announced on the device with another
    /// content.
    pub replaced: u64,
    /// Number of removals of block hashes that were not held.
    pub unknown_removals: u64,
}

impl ReferenceIndex {
    /// Creates an empty index. With `count_copies`, a block that was announced twice is removed by the second removal;
    /// without it, by the first one.
    #[must_use]
    pub fn new(count_copies: bool) -> Self {
        Self { count_copies, ..Self::default() }
    }

    /// Stores consecutive blocks of one chain. The first block continues `parent`; each further block continues the
    /// block before it.
    ///
    /// A store on the device tier defines the content behind its block hashes on all tiers of the rank. A store on
    /// another tier defines the content only of block hashes that the rank holds on no tier.
    ///
    /// # Errors
    ///
    /// Fails, and changes nothing, if the numbers of block hashes and of content hashes differ.
    pub fn store(
        &mut self,
        worker: &str,
        rank: u32,
        tier: Tier,
        parent: Option<BlockHash>,
        block_hashes: &[BlockHash],
        content_hashes: &[u64],
    ) -> Result<(), Error> {
        if block_hashes.len() != content_hashes.len() {
            return Err(Error::LengthMismatch {
                block_hashes: block_hashes.len(),
                content_hashes: content_hashes.len(),
            });
        }
        let mut parent = parent;
        for (&name, &content) in block_hashes.iter().zip(content_hashes) {
            self.store_block(worker, rank, tier, name, (parent, content));
            parent = Some(name);
        }
        Ok(())
    }

    fn store_block(&mut self, worker: &str, rank: u32, tier: Tier, name: BlockHash, content: Content) {
        let count_copies = self.count_copies;
        let mut replaced = 0;
        let rank = self.register(worker).entry(rank).or_default();
        if tier == Tier::Gpu {
            match rank.device.get_mut(&name) {
                Some((held, copies)) if *held == content => *copies += u64::from(count_copies),
                other => {
                    replaced += u64::from(other.is_some());
                    rank.device.insert(name, (content, 1));
                }
            }
            // A name means one block on all tiers, and the device says which.
            if let Some((held, _)) = rank.offloaded.get_mut(&name)
                && *held != content
            {
                *held = content;
                replaced += 1;
            }
        } else {
            let content = rank.device.get(&name).map_or(content, |(held, _)| *held);
            let (_, claims) = rank.offloaded.entry(name).or_insert_with(|| (content, BTreeMap::new()));
            let copies = claims.entry(tier).or_insert(0);
            *copies = if count_copies { *copies + 1 } else { 1 };
        }
        self.replaced += replaced;
    }

    /// Removes one copy of each of these blocks of a rank from one tier. Block hashes that are not held change nothing
    /// but the counter of unknown removals.
    pub fn remove(&mut self, worker: &str, rank: u32, tier: Tier, block_hashes: &[BlockHash]) {
        for name in block_hashes {
            let known = self.ranks(worker).and_then(|ranks| ranks.get_mut(&rank)).is_some_and(|rank| {
                if tier == Tier::Gpu {
                    let Some((_, copies)) = rank.device.get_mut(name) else { return false };
                    *copies -= 1;
                    if *copies == 0 {
                        rank.device.remove(name);
                    }
                } else {
                    let Some((_, claims)) = rank.offloaded.get_mut(name) else { return false };
                    let Some(copies) = claims.get_mut(&tier) else { return false };
                    *copies -= 1;
                    if *copies == 0 {
                        claims.remove(&tier);
                    }
                    if claims.is_empty() {
                        rank.offloaded.remove(name);
                    }
                }
                true
            });
            self.unknown_removals += u64::from(!known);
        }
    }

    /// Removes blocks of a worker: all of them, or with `rank` only those of this rank, or with `tier` only those on
    /// this tier.
    pub fn clear(&mut self, worker: &str, rank: Option<u32>, tier: Option<Tier>) {
        let ranks = self.ranks(worker).into_iter().flatten();
        for (_, held) in ranks.filter(|(number, _)| rank.is_none_or(|rank| rank == **number)) {
            match tier {
                None => *held = Rank::default(),
                Some(Tier::Gpu) => held.device.clear(),
                Some(tier) => held.offloaded.retain(|_, (_, claims)| {
                    claims.remove(&tier);
                    !claims.is_empty()
                }),
            }
        }
    }

    /// Removes a worker and all its blocks. A later store for the same name registers the worker again.
    pub fn drop_worker(&mut self, worker: &str) {
        self.workers.retain(|(name, _)| **name != *worker);
    }

    /// Applies a KV event: a store, a removal or a clear.
    ///
    /// # Errors
    ///
    /// The errors of [`ReferenceIndex::store`].
    pub fn apply(&mut self, event: &Event) -> Result<(), Error> {
        match event {
            Event::Store { worker, rank, tier, parent, block_hashes, content_hashes } => {
                return self.store(worker, *rank, *tier, *parent, block_hashes, content_hashes);
            }
            Event::Remove { worker, rank, tier, block_hashes } => self.remove(worker, *rank, *tier, block_hashes),
            Event::Clear { worker, rank, tier } => self.clear(worker, *rank, *tier),
            Event::Drop { worker } => self.drop_worker(worker),
        }
        Ok(())
    }

    /// Finds, for each worker and rank, the number of leading blocks of the query that it holds.
    #[must_use]
    pub fn find(&self, content_hashes: &[u64]) -> ReferenceMatch {
        let depths = |view| {
            let ranks = self.workers.iter().flat_map(|(worker, ranks)| ranks.iter().map(move |rank| (worker, rank)));
            ranks
                .map(|(worker, (&rank, held))| (Arc::clone(worker), rank, depth(&held.view(view), content_hashes)))
                .filter(|&(_, _, depth)| depth > 0)
                .collect()
        };
        ReferenceMatch { views: View::ALL.map(depths) }
    }

    /// Events that build an equal index from an empty one; each event stores a single block.
    #[must_use]
    pub fn dump(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for (worker, ranks) in &self.workers {
            for (&rank, held) in ranks {
                let mut store = |tier, name, (parent, content), copies| {
                    let event = Event::Store {
                        worker: worker.as_ref().into(),
                        rank,
                        tier,
                        parent,
                        block_hashes: vec![name],
                        content_hashes: vec![content],
                    };
                    events.extend(std::iter::repeat_n(event, copies as usize));
                };
                for (&name, &(content, copies)) in &held.device {
                    store(Tier::Gpu, name, content, copies);
                }
                for (&name, (content, claims)) in &held.offloaded {
                    claims.iter().for_each(|(&tier, &copies)| store(tier, name, *content, copies));
                }
            }
        }
        events
    }

    /// Name of every worker and the number of its blocks, in order of registration. A block that is both in device
    /// memory and offloaded counts twice.
    #[must_use]
    pub fn workers(&self) -> Vec<(Box<str>, u64)> {
        let blocks =
            |ranks: &BTreeMap<u32, Rank>| ranks.values().map(|r| r.device.len() + r.offloaded.len()).sum::<usize>();
        self.workers.iter().map(|(worker, ranks)| (worker.as_ref().into(), blocks(ranks) as u64)).collect()
    }

    fn ranks(&mut self, worker: &str) -> Option<&mut BTreeMap<u32, Rank>> {
        self.workers.iter_mut().find(|(name, _)| **name == *worker).map(|(_, ranks)| ranks)
    }

    fn register(&mut self, worker: &str) -> &mut BTreeMap<u32, Rank> {
        let at = self.workers.iter().position(|(name, _)| **name == *worker).unwrap_or_else(|| {
            self.workers.push((worker.into(), BTreeMap::new()));
            self.workers.len() - 1
        });
        &mut self.workers[at].1
    }
}

/// Result of a lookup in the reference index: every worker and rank that holds at least the first block, with its
/// depth, the number of leading blocks that it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReferenceMatch {
    views: [Vec<(Arc<str>, u32, u32)>; 4],
}

impl ReferenceMatch {
    /// Triples of worker, rank and depth in blocks, sorted by the worker's time of registration and then by rank.
    #[must_use]
    pub fn by_rank(&self, view: View) -> Vec<(Arc<str>, u32, u32)> {
        self.views[view as usize].clone()
    }

    /// Pairs of a worker and the greatest depth of its ranks, in blocks; deepest first, equal depths in order of
    /// registration.
    #[must_use]
    pub fn scores(&self, view: View) -> Vec<(Arc<str>, u32)> {
        let mut scores: Vec<(Arc<str>, u32)> = Vec::new();
        for (worker, _, depth) in self.by_rank(view) {
            match scores.iter_mut().find(|(known, _)| *known == worker) {
                Some((_, best)) => *best = depth.max(*best),
                None => scores.push((worker, depth)),
            }
        }
        scores.sort_by_key(|&(_, depth)| std::cmp::Reverse(depth));
        scores
    }

    /// Levels of the result, deepest first: a depth in blocks, with the workers whose best rank has this depth.
    #[must_use]
    pub fn levels(&self, view: View) -> Vec<(u32, Vec<Arc<str>>)> {
        let mut levels: Vec<(u32, Vec<Arc<str>>)> = Vec::new();
        for (worker, depth) in self.scores(view) {
            match levels.last_mut() {
                Some((last, workers)) if *last == depth => workers.push(worker),
                _ => levels.push((depth, vec![worker])),
            }
        }
        levels
    }

    /// Greatest number of leading blocks of the query that any worker holds.
    #[must_use]
    pub fn depth(&self, view: View) -> u32 {
        self.by_rank(view).iter().map(|&(_, _, depth)| depth).max().unwrap_or(0)
    }

    /// The `k` deepest pairs of worker and depth, as sorted by [`ReferenceMatch::scores`]. With `among`, only workers
    /// named there count.
    #[must_use]
    pub fn best(&self, view: View, k: usize, among: Option<&[&str]>) -> Vec<(Arc<str>, u32)> {
        let allowed = |worker: &str| among.is_none_or(|among| among.contains(&worker));
        self.scores(view).into_iter().filter(|(worker, _)| allowed(worker)).take(k).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[u64]) -> Vec<BlockHash> {
        names.iter().copied().map(BlockHash).collect()
    }

    fn store(index: &mut ReferenceIndex, tier: Tier, parent: Option<u64>, blocks: &[(u64, u64)]) {
        let (names, contents): (Vec<_>, Vec<_>) = blocks.iter().map(|&(n, c)| (BlockHash(n), c)).unzip();
        index.store("w", 0, tier, parent.map(BlockHash), &names, &contents).unwrap();
    }

    fn depths(index: &ReferenceIndex, query: &[u64]) -> (u32, u32) {
        let found = index.find(query);
        (found.depth(View::Device), found.depth(View::AnyTier))
    }

    #[test]
    fn holes_and_orphans() {
        let mut index = ReferenceIndex::new(true);
        store(&mut index, Tier::Gpu, Some(2), &[(3, 30)]);
        assert_eq!(depths(&index, &[10, 20, 30]), (0, 0));
        store(&mut index, Tier::Gpu, None, &[(1, 10), (2, 20)]);
        assert_eq!(depths(&index, &[10, 20, 30, 40]), (3, 3));
        index.remove("w", 0, Tier::Gpu, &names(&[2]));
        assert_eq!(depths(&index, &[10, 20, 30]), (1, 1));
        store(&mut index, Tier::Gpu, Some(1), &[(2, 20)]);
        assert_eq!(depths(&index, &[10, 20, 30]), (3, 3));
    }

    #[test]
    fn copies_count_or_not() {
        for (count_copies, left) in [(true, 1), (false, 0)] {
            let mut index = ReferenceIndex::new(count_copies);
            store(&mut index, Tier::Gpu, None, &[(1, 10)]);
            store(&mut index, Tier::Gpu, None, &[(1, 10)]);
            index.remove("w", 0, Tier::Gpu, &names(&[1]));
            assert_eq!(depths(&index, &[10]).0, left);
        }
    }

    #[test]
    fn tiers_join_chains_in_the_any_view_only() {
        let mut index = ReferenceIndex::new(true);
        store(&mut index, Tier::Gpu, None, &[(1, 10)]);
        store(&mut index, Tier::Cpu, Some(1), &[(2, 20)]);
        store(&mut index, Tier::Gpu, Some(2), &[(3, 30)]);
        assert_eq!(depths(&index, &[10, 20, 30]), (1, 3));
        index.remove("w", 0, Tier::Disk, &names(&[2]));
        assert_eq!(index.unknown_removals, 1);
        index.clear("w", None, Some(Tier::Cpu));
        assert_eq!(depths(&index, &[10, 20, 30]), (1, 1));
    }

    #[test]
    fn the_device_says_what_a_name_means() {
        let mut index = ReferenceIndex::new(true);
        store(&mut index, Tier::Cpu, None, &[(1, 10)]);
        assert_eq!((depths(&index, &[10]), depths(&index, &[11])), ((0, 1), (0, 0)));
        store(&mut index, Tier::Gpu, None, &[(1, 11)]);
        assert_eq!((depths(&index, &[10]), depths(&index, &[11])), ((0, 0), (1, 1)));
        store(&mut index, Tier::Disk, None, &[(1, 10)]);
        assert_eq!((depths(&index, &[10]), depths(&index, &[11])), ((0, 0), (1, 1)));
        assert_eq!(index.replaced, 1);
        // The device's content for a block hash stays valid while any tier holds the block.
        index.remove("w", 0, Tier::Gpu, &names(&[1]));
        index.remove("w", 0, Tier::Cpu, &names(&[1]));
        store(&mut index, Tier::Cpu, None, &[(1, 10)]);
        assert_eq!((depths(&index, &[10]), depths(&index, &[11])), ((0, 0), (0, 1)));
        index.clear("w", None, None);
        store(&mut index, Tier::Cpu, None, &[(1, 10)]);
        assert_eq!((depths(&index, &[10]), depths(&index, &[11])), ((0, 1), (0, 0)));
    }

    #[test]
    fn a_dump_restores() {
        let mut index = ReferenceIndex::new(true);
        store(&mut index, Tier::Gpu, None, &[(1, 10), (2, 20), (2, 20)]);
        store(&mut index, Tier::Gpu, None, &[(1, 10)]);
        store(&mut index, Tier::Cpu, None, &[(3, 21)]);
        store(&mut index, Tier::Disk, None, &[(2, 21), (3, 21)]);
        let mut copy = ReferenceIndex::new(true);
        for event in index.dump() {
            copy.apply(&event).unwrap();
        }
        assert_eq!(copy.workers, index.workers);
    }

    #[test]
    fn a_match_in_all_its_forms() {
        let mut index = ReferenceIndex::new(true);
        for (worker, rank, depth) in [("a", 0, 1), ("b", 0, 1), ("b", 7, 3), ("c", 0, 1)] {
            index.store(worker, rank, Tier::Gpu, None, &names(&[1, 2, 3][..depth]), &[10, 20, 30][..depth]).unwrap();
        }
        let found = index.find(&[10, 20, 30, 40]);
        let level = |depth, workers: &[&str]| (depth, workers.iter().map(|&w| Arc::from(w)).collect::<Vec<_>>());
        assert_eq!(found.levels(View::Device), [level(3, &["b"]), level(1, &["a", "c"])]);
        assert_eq!(found.by_rank(View::Device).len(), 4);
        assert_eq!(found.best(View::Device, 1, Some(&["c", "a"])), [(Arc::from("a"), 1)]);
        assert_eq!(found.best(View::AnyTier, 9, None).len(), 3);
        index.drop_worker("b");
        assert_eq!(index.find(&[10, 20]).levels(View::AnyTier), [level(1, &["a", "c"])]);
    }
}
