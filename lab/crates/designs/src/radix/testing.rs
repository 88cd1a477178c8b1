//! Random streams of changes for the two radix trees, their comparison with the reference, and tests of the
//! single-threaded tree's known errors by their smallest examples.

use kvatlas_index::reference::ReferenceIndex;
use kvatlas_index::{BlockHash, Tier, View};
use kvatlas_testing::seeds;
pub(crate) use kvatlas_testing::{Random, mix};

use super::RadixTree;
use crate::interface::{Change, ConcurrentDesign, LadderStats, LocalDesign, Refusal, Scores, WorkerId};

/// Block hashes that an engine gives to the blocks of a prompt. `salt`: a number that distinguishes engines.
pub(crate) fn names(salt: u64, prompt: &[u64]) -> Vec<BlockHash> {
    let chain = prompt.iter().scan(salt, |chain, content| {
        *chain = mix(*chain ^ content.wrapping_mul(31));
        Some(BlockHash(*chain))
    });
    chain.collect()
}

/// Kinds of changes that a random stream may contain, besides stores and removals in any order.
#[derive(Clone, Copy, Default)]
pub(crate) struct Habits {
    /// Percentage of stores that continue a random block, which the worker may or may not hold.
    pub(crate) orphans: u64,
    /// Percentage of blocks whose block hash is from a small set, so that block hashes move to other nodes and nodes
    /// get several.
    pub(crate) chaos: u64,
}

/// A random stream of changes, with queries.
pub(crate) struct Stream {
    pub(crate) changes: Vec<Change>,
    pub(crate) queries: Vec<Vec<u64>>,
}

pub(crate) fn stream(seed: u64, length: usize, habits: Habits) -> Stream {
    let random = &mut Random(seed);
    let workers: Vec<WorkerId> = match random.below(4) {
        0 => (0..3).collect(),
        1 => (0..64).collect(),
        2 => (40..110).collect(),
        _ => (0..90).map(|i| i * i * 50).collect(),
    };
    // Few workers at a time give long chains, all of them wide sets.
    let crowd = *random.pick(&[2, 3, workers.len()]);
    let same_names = random.chance(50);
    let contents = *random.pick(&[1, 2, 3, 1 << 40]);
    let mut prompts: Vec<Vec<u64>> = vec![vec![1]];
    let mut changes = Vec::new();
    for _ in 0..length {
        if random.chance(25) {
            let other = random.pick(&prompts);
            let mut prompt = other[..random.below(other.len() as u64 + 1) as usize].to_vec();
            prompt.extend((0..random.below(12) + 1).map(|_| random.below(contents) + 1));
            if prompts.len() > 12 {
                prompts.remove(0);
            }
            prompts.push(prompt);
        }
        let worker = *random.pick(&workers[..crowd]);
        let prompt = random.pick(&prompts).clone();
        let mut all = names(if same_names { 0 } else { u64::from(worker) }, &prompt);
        for name in &mut all {
            if random.chance(habits.chaos) {
                *name = BlockHash(random.below(8));
            }
        }
        let from = random.below(prompt.len() as u64) as usize;
        let from = if random.chance(habits.orphans) { from } else { 0 };
        let to = from + 1 + random.below((prompt.len() - from) as u64) as usize;
        changes.push(match random.below(100) {
            0..=1 => Change::Clear { worker },
            2 => Change::Drop { worker },
            3..=59 => Change::Store {
                worker,
                parent: from.checked_sub(1).map(|at| all[at]),
                block_hashes: all[from..to].into(),
                content_hashes: prompt[from..to].into(),
            },
            _ => {
                let from = random.below(to as u64) as usize;
                let mut gone = all[from..to].to_vec();
                match random.below(4) {
                    0 => gone.reverse(),
                    1 => gone.retain(|_| random.chance(40)),
                    2 => gone.truncate(1),
                    _ => {}
                }
                Change::Remove { worker, block_hashes: gone.into() }
            }
        });
    }
    Stream { changes, queries: prompts }
}

/// A concurrent radix tree used by one thread, so that tests can treat it as a single-threaded index.
pub(crate) struct SingleThread<C>(pub(crate) C);

impl<C: ConcurrentDesign> LocalDesign for SingleThread<C> {
    fn store(&mut self, w: WorkerId, p: Option<BlockHash>, b: &[BlockHash], c: &[u64]) -> Result<(), Refusal> {
        self.0.store(w, p, b, c)
    }
    fn remove(&mut self, worker: WorkerId, block_hashes: &[BlockHash]) {
        self.0.remove(worker, block_hashes);
    }
    fn clear(&mut self, worker: WorkerId) {
        self.0.clear(worker);
    }
    fn drop_worker(&mut self, worker: WorkerId) {
        self.0.drop_worker(worker);
    }
    fn find(&self, content_hashes: &[u64], scores: &mut Scores) {
        self.0.find(content_hashes, scores);
    }
    fn stats(&self) -> LadderStats {
        self.0.stats()
    }
    fn holdings(&self) -> Vec<(WorkerId, BlockHash)> {
        self.0.holdings()
    }
}

pub(crate) fn answer(tree: &impl LocalDesign, query: &[u64]) -> Scores {
    let mut scores = vec![(9, 9)];
    tree.find(query, &mut scores);
    scores.sort_unstable();
    scores
}

pub(crate) fn expected(reference: &ReferenceIndex, query: &[u64]) -> Scores {
    let found = reference.find(query).by_rank(View::Device);
    let mut scores: Scores = found.iter().map(|(worker, _, depth)| (worker.parse().unwrap(), *depth)).collect();
    scores.sort_unstable();
    scores
}

/// Applies a change to the reference index.
pub(crate) fn tell(reference: &mut ReferenceIndex, change: &Change) {
    let worker = change.worker().to_string();
    match change {
        Change::Store { parent, block_hashes, content_hashes, .. } => {
            reference.store(&worker, 0, Tier::Gpu, *parent, block_hashes, content_hashes).unwrap();
        }
        Change::Remove { block_hashes, .. } => reference.remove(&worker, 0, Tier::Gpu, block_hashes),
        Change::Clear { .. } => reference.clear(&worker, None, None),
        Change::Drop { .. } => reference.drop_worker(&worker),
    }
}

/// Applies a stream of changes to a tree and to the reference index, without the changes that the tree refuses;
/// `refuses`: true if it may refuse any. If `exact`, their answers must agree, too. In the end everything is removed,
/// and the tree must be empty.
pub(crate) fn compare(tree: &mut impl LocalDesign, stream: &Stream, refuses: bool, exact: bool) -> Result<u64, String> {
    let mut reference = ReferenceIndex::new(false);
    let mut refused = 0;
    for (at, change) in stream.changes.iter().enumerate() {
        let held = tree.holdings();
        match tree.apply(change) {
            Ok(()) => tell(&mut reference, change),
            Err(Refusal::UnknownParent { worker, parent }) => {
                if !refuses || held.binary_search(&(worker, parent)).is_ok() || held != tree.holdings() {
                    return Err(format!("change {at} {change:?}: refused"));
                }
                refused += 1;
            }
            Err(refusal) => return Err(format!("change {at}: {refusal}")),
        }
        if exact {
            for query in &stream.queries {
                let (got, want) = (answer(tree, query), expected(&reference, query));
                if got != want {
                    return Err(format!("after change {at} {change:?}: query {query:?}: {got:?}, not {want:?}"));
                }
            }
        }
        let blocks = reference.workers().iter().map(|(_, blocks)| blocks).sum::<u64>();
        let stats = tree.stats();
        let want = (blocks, reference.workers().len() as u64, refused, reference.unknown_removals);
        if (stats.blocks, stats.workers, stats.refused, stats.unknown_removals) != want {
            return Err(format!("after change {at} {change:?}: {stats:?}, not {want:?}"));
        }
    }
    let mut want = Vec::new();
    for event in reference.dump() {
        if let kvatlas_index::Event::Store { worker, block_hashes, .. } = event {
            want.push((worker.parse().unwrap(), block_hashes[0]));
        }
    }
    want.sort_unstable();
    if tree.holdings() != want {
        return Err(format!("holds {:?}, not {want:?}", tree.holdings()));
    }
    for (worker, _) in reference.workers() {
        tree.drop_worker(worker.parse().unwrap());
    }
    let stats = tree.stats();
    if (stats.workers, stats.blocks, stats.entries) != (0, 0, 0) {
        return Err(format!("not empty in the end: {stats:?}"));
    }
    Ok(refused)
}

/// Compares a tree and the reference index on many random streams of changes. A difference is reported with the fewest
/// changes found that cause it.
pub(crate) fn check<T: LocalDesign>(make: impl Fn() -> T, habits: Habits, refuses: bool, exact: bool) {
    let mut refused = 0;
    for seed in 0..seeds(100) {
        let stream = &mut stream(seed, 40 + seed as usize % 120, habits);
        let Err(mut what) = compare(&mut make(), stream, refuses, exact).map(|n| refused += n) else { continue };
        let mut at = stream.changes.len();
        while at > 0 {
            at -= 1;
            let change = stream.changes.remove(at);
            match compare(&mut make(), stream, refuses, exact) {
                Err(still) => what = still,
                Ok(_) => stream.changes.insert(at, change),
            }
        }
        let listing: String = stream.changes.iter().map(|change| format!("{change:?}\n")).collect();
        panic!("seed {seed}: {what}\n{listing}");
    }
    assert_eq!(refused > 0, refuses, "streams that test what they should");
}

#[test]
fn equals_the_reference_with_holes_duplicates_clears_and_drops() {
    check(RadixTree::new, Habits::default(), false, true);
}

#[test]
fn refuses_orphans_and_nothing_else() {
    check(RadixTree::new, Habits { orphans: 50, chaos: 0 }, true, true);
}

#[test]
fn holds_what_the_reference_holds_whatever_names_do() {
    check(RadixTree::new, Habits { orphans: 30, chaos: 20 }, true, false);
    check(RadixTree::new, Habits { orphans: 50, chaos: 100 }, true, false);
}

fn store(worker: u32, parent: Option<u64>, blocks: &[(u64, u64)]) -> Change {
    Change::Store {
        worker,
        parent: parent.map(BlockHash),
        block_hashes: blocks.iter().map(|&(name, _)| BlockHash(name)).collect(),
        content_hashes: blocks.iter().map(|&(_, content)| content).collect(),
    }
}

fn remove(worker: u32, names: &[u64]) -> Change {
    Change::Remove { worker, block_hashes: names.iter().copied().map(BlockHash).collect() }
}

/// Depth of worker 0 in the tree, and in the reference, after the given changes.
fn depths(changes: &[Change], query: &[u64]) -> (u32, u32) {
    let (mut tree, mut reference) = (RadixTree::new(), ReferenceIndex::new(false));
    for change in changes {
        let _ = tree.apply(change);
        tell(&mut reference, change);
    }
    let of = |scores: Vec<(u32, u32)>| scores.iter().find(|(worker, _)| *worker == 0).map_or(0, |&(_, depth)| depth);
    (of(answer(&tree, query)), of(expected(&reference, query)))
}

#[test]
fn a_hole_ends_the_match_until_it_is_filled() {
    let chain: Vec<(u64, u64)> = (1..=10).map(|i| (i, i * 10)).collect();
    let query: Vec<u64> = chain.iter().map(|&(_, content)| content).collect();
    let mut changes = vec![store(0, None, &chain), store(1, None, &chain[..5]), remove(0, &[5])];
    assert_eq!(depths(&changes, &query), (4, 4));
    changes.push(store(0, Some(4), &chain[4..5]));
    assert_eq!(depths(&changes, &query), (10, 10));
}

#[test]
fn deviation_an_orphan_is_refused() {
    let mut tree = RadixTree::new();
    let orphan = tree.apply(&store(0, Some(1), &[(2, 20)]));
    assert_eq!(orphan, Err(Refusal::UnknownParent { worker: 0, parent: BlockHash(1) }));
    assert_eq!((tree.stats().refused, tree.stats().workers, tree.stats().entries), (1, 0, 0));
    let changes = [store(0, Some(1), &[(2, 20)]), store(0, None, &[(1, 10)])];
    assert_eq!(depths(&changes, &[10, 20]), (1, 2));
    // Another worker's block of that name is not a parent.
    let changes = [store(1, None, &[(1, 10)]), store(0, Some(1), &[(2, 20)])];
    assert_eq!(depths(&changes, &[10, 20]), (0, 0));
}

#[test]
fn deviation_two_names_of_one_worker_for_one_position() {
    let mut changes =
        vec![store(0, None, &[(1, 10)]), store(0, None, &[(2, 10)]), store(0, Some(1), &[(3, 20)]), remove(0, &[1])];
    assert_eq!(depths(&changes, &[10, 20]), (2, 1));
    changes.push(remove(0, &[2]));
    assert_eq!(depths(&changes, &[10, 20]), (0, 0));
}

#[test]
fn deviation_a_name_announced_elsewhere_moves_alone() {
    let changes = [store(0, None, &[(1, 10), (2, 20)]), store(0, None, &[(1, 11)])];
    assert_eq!(depths(&changes, &[11, 20]), (1, 2));
    assert_eq!(depths(&changes, &[10, 20]), (0, 0));
}

#[test]
fn a_name_may_be_its_own_parent() {
    let changes = [store(0, None, &[(1, 10), (1, 20), (1, 30)])];
    assert_eq!(depths(&changes, &[10, 20, 30]), (0, 0));
}

#[test]
fn refuses_lists_of_different_lengths() {
    let mut tree = RadixTree::new();
    let refused = tree.store(0, None, &[BlockHash(1)], &[]);
    assert_eq!(refused, Err(Refusal::LengthMismatch { block_hashes: 1, content_hashes: 0 }));
    assert_eq!((tree.stats().refused, tree.stats().workers), (1, 0));
}

#[test]
fn a_million_blocks_deep() {
    let contents: Vec<u64> = (1..=1_000_000).collect();
    let all = names(0, &contents);
    let mut tree = RadixTree::new();
    tree.store(0, None, &all, &contents).unwrap();
    tree.store(1, None, &all, &contents).unwrap();
    assert_eq!(answer(&tree, &contents), [(0, 1_000_000), (1, 1_000_000)]);
    tree.clear(0);
    assert_eq!(answer(&tree, &contents), [(1, 1_000_000)]);
    // From the head on: nodes stay until the last one is removed, and then all are freed at once.
    tree.remove(1, &all);
    assert_eq!((tree.stats().entries, tree.stats().workers), (0, 2));
    tree.store(0, None, &all, &contents).unwrap();
    drop(tree);
}
