//! Tests of the concurrent radix tree: in one thread against the reference, in several against known bounds.

use std::cell::Cell;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use super::ConcurrentRadixTree;
use crate::interface::{Change, ConcurrentDesign, LocalDesign, WorkerId};
use crate::radix::RadixTree;
use crate::radix::testing::{Habits, Random, SingleThread, answer, check, mix, names, stream};
use kvatlas_index::BlockHash;
use kvatlas_testing::seeds;

thread_local! {
    /// Percentage of pauses (calls of the tree's test hook between two locks) in which a test's thread yields to
    /// others, and the state of its random generator.
    static COURTESY: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// Yields to other threads at random. Returns true after yielding, so that the caller treats the lock as taken.
pub(super) fn come_between() -> bool {
    COURTESY.with(|courtesy| {
        let (percent, state) = courtesy.get();
        courtesy.set((percent, state.wrapping_add(1)));
        let chosen = mix(state) % 100 < percent;
        if chosen {
            thread::yield_now();
        }
        chosen
    })
}

fn alone() -> SingleThread<ConcurrentRadixTree> {
    SingleThread(ConcurrentRadixTree::new())
}

#[test]
fn equals_the_reference_with_holes_duplicates_clears_and_drops() {
    check(alone, Habits::default(), false, true);
}

#[test]
fn refuses_orphans_and_nothing_else() {
    check(alone, Habits { orphans: 50, chaos: 0 }, true, true);
}

#[test]
fn holds_what_the_reference_holds_whatever_names_do() {
    check(alone, Habits { orphans: 30, chaos: 20 }, true, false);
    check(alone, Habits { orphans: 50, chaos: 100 }, true, false);
}

/// Checks that the concurrent tree gives the answers of the single-threaded one, also if block hashes are reused for
/// other blocks; the two deviate from the reference in the same way.
#[test]
fn answers_like_the_tree_of_one_thread_whatever_names_do() {
    for seed in 0..seeds(100) {
        let stream = stream(seed, 120, Habits { orphans: 40, chaos: [10, 50, 100][seed as usize % 3] });
        let (mut one, mut many) = (RadixTree::new(), alone());
        for change in &stream.changes {
            assert_eq!(one.apply(change), many.apply(change), "seed {seed}");
            assert_eq!(one.stats(), many.stats(), "seed {seed}");
        }
        for query in &stream.queries {
            assert_eq!(answer(&one, query), answer(&many, query), "seed {seed}");
        }
    }
}

#[test]
fn a_million_blocks_deep() {
    let contents: Vec<u64> = (1..=1_000_000).collect();
    let all = names(0, &contents);
    let mut tree = alone();
    tree.store(0, None, &all, &contents).unwrap();
    tree.store(1, None, &all, &contents).unwrap();
    assert_eq!(answer(&tree, &contents), [(0, 1_000_000), (1, 1_000_000)]);
    tree.clear(0);
    tree.remove(1, &all);
    assert_eq!((tree.stats().entries, tree.stats().workers), (0, 2));
    tree.store(0, None, &all, &contents).unwrap();
    drop(tree);
}

/// Lets threads grow and cut the same few chains. The final holdings of each worker do not depend on the interleaving,
/// so they must equal those of one thread with the same changes: no node is lost, and none is left over.
#[test]
fn threads_that_meet_everywhere_leave_what_one_thread_would() {
    const THREADS: u64 = 4;
    for round in 0..seeds(24) {
        let tree = &ConcurrentRadixTree::new();
        let habits = Habits { orphans: 20, chaos: if round % 3 == 0 { 10 } else { 0 } };
        // All threads use the same prompts, and change workers of their own.
        let streams: Vec<_> = (0..THREADS)
            .map(|thread| {
                let mut stream = stream(round, 1500, habits);
                for (at, change) in stream.changes.iter_mut().enumerate() {
                    *change = owned_by(change, thread, mix(round << 32 | (at as u64) << 8 | thread));
                }
                stream
            })
            .collect();
        let barrier = &Barrier::new(THREADS as usize);
        thread::scope(|scope| {
            for (thread, stream) in streams.iter().enumerate() {
                scope.spawn(move || {
                    COURTESY.set((30, mix(round) ^ thread as u64));
                    barrier.wait();
                    for change in &stream.changes {
                        let _ = tree.apply(change);
                    }
                });
            }
        });
        let mut one = RadixTree::new();
        for change in streams.iter().flat_map(|stream| &stream.changes) {
            let _ = one.apply(change);
        }
        assert_eq!(tree.holdings(), one.holdings(), "round {round}");
        assert_eq!(tree.stats(), one.stats(), "round {round}");
        for query in streams.iter().flat_map(|stream| &stream.queries) {
            let mut scores = Vec::new();
            tree.find(query, &mut scores);
            scores.sort_unstable();
            assert_eq!(scores, answer(&one, query), "round {round} query {query:?}");
        }
        for (worker, _) in one.holdings() {
            tree.drop_worker(worker);
        }
        assert_eq!(tree.stats().entries, 0, "round {round}");
    }
}

/// Copy of a change for a worker that belongs to the thread; some changes are inverted, so that threads store while
/// others remove.
fn owned_by(change: &Change, thread: u64, dice: u64) -> Change {
    let worker = (change.worker() % 5) + thread as WorkerId * 40;
    match change.clone() {
        Change::Store { parent: None, block_hashes, .. } if dice.is_multiple_of(3) => {
            Change::Remove { worker, block_hashes }
        }
        Change::Store { parent, block_hashes, content_hashes, .. } => {
            Change::Store { worker, parent, block_hashes, content_hashes }
        }
        Change::Remove { block_hashes, .. } => Change::Remove { worker, block_hashes },
        Change::Clear { .. } => Change::Clear { worker },
        Change::Drop { .. } => Change::Drop { worker },
    }
}

/// Smallest and largest depth (number of leading blocks held) that a worker truly has in one chain while a change is
/// applied.
#[derive(Default)]
struct Bounds {
    /// Number of changes begun plus number of changes ended: odd while a change is in progress.
    version: AtomicU64,
    before: AtomicU64,
    after: AtomicU64,
}

impl Bounds {
    fn range(&self) -> (u64, u64) {
        let (before, after) = (self.before.load(Ordering::SeqCst), self.after.load(Ordering::SeqCst));
        (before.min(after), before.max(after))
    }
}

const DEPTH: u64 = 40;
const CHAINS: u64 = 6;

/// Content hashes of a chain's blocks. The chains of different numbers differ from an early or a late block on, or from
/// the first.
fn chain(number: u64) -> Vec<u64> {
    (0..DEPTH)
        .map(|at| if at < [0, 1, 5, 20, 38, 39][number as usize] { at + 1 } else { (number + 1) << 32 | at })
        .collect()
}

/// Looks up while one worker's holdings stay a prefix of each chain, as an engine's do. Every depth must then lie
/// between the smallest and the largest true one during the call, regardless of other workers' changes of the same
/// nodes.
#[test]
fn depths_lie_between_the_smallest_and_the_largest_true_ones() {
    const WRITERS: u64 = 3;
    const EACH: u64 = 30; // more than fit into a word in all
    let tree = &ConcurrentRadixTree::new();
    // Each worker has one chain, so that its depth there is known.
    let known: &Vec<Bounds> = &(0..WRITERS * EACH).map(|_| Bounds::default()).collect();
    let stop = &AtomicBool::new(false);
    let checked = &AtomicU64::new(0);
    thread::scope(|scope| {
        for reader in 0..2 {
            scope.spawn(move || {
                let random = &mut Random(100 + reader);
                let mut scores = Vec::new();
                while !stop.load(Ordering::SeqCst) {
                    let number = random.below(CHAINS);
                    let query = chain(number);
                    let start: Vec<_> =
                        known.iter().map(|it| (it.version.load(Ordering::SeqCst), it.range())).collect();
                    tree.find(&query, &mut scores);
                    for (worker, (version, first)) in (0..).zip(start) {
                        let it = &known[worker as usize];
                        let last = it.range();
                        if u64::from(worker) % CHAINS != number || it.version.load(Ordering::SeqCst) > (version | 1) + 1
                        {
                            continue; // too much has happened to know the bounds
                        }
                        let (least, most) = (first.0.min(last.0), first.1.max(last.1));
                        let depth = scores.iter().find(|(w, _)| *w == worker).map_or(0, |&(_, depth)| u64::from(depth));
                        assert!((least..=most).contains(&depth), "worker {worker}: {depth} not in {least}..={most}");
                        checked.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                scope.spawn(move || {
                    COURTESY.set((5, writer));
                    let random = &mut Random(writer);
                    for _ in 0..seeds(10_000) {
                        let worker = writer * EACH + random.below(EACH);
                        change(tree, &known[worker as usize], random, worker as WorkerId);
                    }
                })
            })
            .collect();
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        stop.store(true, Ordering::SeqCst);
        ended.into_iter().for_each(|writer| writer.unwrap());
    });
    assert!(checked.load(Ordering::Relaxed) > 0, "no answer was checked");
    for worker in 0..WRITERS * EACH {
        tree.drop_worker(worker as WorkerId);
    }
    assert_eq!(tree.stats().entries, 0);
}

/// Grows or shrinks a worker's chain at its end, or removes it altogether.
fn change(tree: &ConcurrentRadixTree, it: &Bounds, random: &mut Random, worker: WorkerId) {
    let contents = chain(u64::from(worker) % CHAINS);
    let all = names(u64::from(worker % 3), &contents);
    let held = it.after.load(Ordering::SeqCst);
    let to = if random.chance(25) { 0 } else { random.below(DEPTH + 1) };
    it.before.store(held, Ordering::SeqCst);
    it.version.fetch_add(1, Ordering::SeqCst);
    it.after.store(to, Ordering::SeqCst);
    let (from, until) = (held as usize, to as usize);
    if to > held {
        let parent = from.checked_sub(1).map(|last| all[last]);
        tree.store(worker, parent, &all[from..until], &contents[from..until]).unwrap();
    } else if to == 0 && random.chance(50) {
        if random.chance(50) { tree.clear(worker) } else { tree.drop_worker(worker) }
    } else {
        let mut gone: Vec<BlockHash> = all[until..from].to_vec();
        // Within one event some engines remove parents before children.
        if random.chance(70) {
            gone.reverse();
        }
        tree.remove(worker, &gone);
    }
    it.version.fetch_add(1, Ordering::SeqCst);
}
