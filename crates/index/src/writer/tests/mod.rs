//! Tests of the writer: counters updated with each change against counters computed anew, and the life of ranks.

mod steps;

use std::collections::HashSet;

use kvatlas_testing::{Random, seeds};

use super::holders::Holder;
use super::state::Writer;
use crate::fingerprint::word;
use crate::handle::RankHandle;
use crate::index::{BlockIndex, Config};
use crate::position::Position;
use crate::raw::Level;
use crate::stats::steps_of;
use crate::types::{BlockHash, Event, Tier, View};

impl Writer {
    fn is_counted(&self) -> bool {
        let holder = |(number, it): (usize, &Holder)| {
            let is_right = |name, at| {
                let at = self.runs.position(at);
                self.covers(number as u32, at) && !it.covers_irregularly(at) && self.runs.name(at) == name
            };
            let listed: HashSet<_> = it.runs.iter().copied().collect();
            let mut entered = 0;
            for run in 0..self.runs.numbers() as u32 {
                if self.runs.is_live(run) && self.covers(number as u32, Position { run, offset: 0 }) {
                    entered += u32::from(self.is_leaving(number as u32) || listed.contains(&run));
                }
            }
            (self.is_leaving(number as u32) || entered == it.entered)
                && it.irregular.as_ref().is_none_or(|irregular| irregular.is_counted())
                && it.private.as_ref().is_none_or(|private| private.is_counted(&self.runs))
                && it.coming.as_ref().is_none_or(|coming| it.private.is_none() && coming.is_counted(is_right))
                && (it.coming.is_none() || self.gathering.contains(&(number as u32)))
        };
        self.holders.iter().enumerate().all(holder)
            && self.workers.ranks().all(|(_, _, books)| books.copies.is_counted() && books.offloaded.is_counted())
            && self.runs.is_counted()
            && self.names.is_counted()
            && self.trash.is_counted()
            && self.waiting == self.holders.iter().map(Holder::unlinked).sum::<usize>()
            && (0..self.holders.len()).all(|holder| {
                let is_in = |level: &Level| self.sets.contains(level.set, holder as u32);
                let unlisted = self.runs.unlisted().filter(|(_, level)| level.as_ref().is_some_and(is_in));
                self.holders[holder].hanging.is_counted(&unlisted.map(|(place, _)| place).collect::<Vec<_>>())
            })
    }
}

/// Fingerprint of the blocks in a dump of one rank (a list of store events), computed from these events.
fn fingerprint(dump: &[Event]) -> u64 {
    let held: HashSet<(Tier, u64)> = dump
        .iter()
        .flat_map(|event| match event {
            Event::Store { tier, block_hashes, .. } => block_hashes.iter().map(|name| (*tier, name.0)),
            _ => panic!("a dump is of stores"),
        })
        .collect();
    held.into_iter().fold(0, |sum, (tier, name)| sum.wrapping_add(word(tier, name)))
}

#[test]
fn what_is_counted_as_it_changes_is_right() {
    let (mut unlinked, mut copies, mut private) = (0, 0, 0);
    for seed in 0..seeds(200) {
        let random = &mut Random(seed);
        let index = BlockIndex::new(Config { block_size: 1, count_copies: true }).expect("a block size");
        index.branch_from([1, 3, 100][seed as usize / 2 % 3]);
        index.own_names_at_once([0, 5, 100][seed as usize / 6 % 3]);
        for _ in 0..300 {
            let worker = format!("w{}", random.below(3));
            let tier = if random.chance(20) { *random.pick(&Tier::ALL) } else { Tier::Gpu };
            // In every other stream chains fork so often that children are not all listed.
            let most = if seed % 2 == 0 { 24 } else { 200 };
            let names: Vec<_> = (0..random.below(6)).map(|_| BlockHash(random.below(most))).collect();
            let contents: Vec<_> =
                names.iter().map(|name| if random.chance(70) { name.0 } else { random.below(4) }).collect();
            let parent = random.chance(70).then(|| BlockHash(random.below(24)));
            match random.below(20) {
                0 if random.chance(20) => index.drop_worker(&worker),
                0 => index.clear(&worker, None, random.chance(50).then_some(tier)),
                1..=12 => index.store(&worker, 0, tier, parent, &names, &contents).expect("lists of one length"),
                _ => index.remove(&worker, 0, tier, &names),
            }
            index.write(|writer| assert!(writer.is_counted(), "seed {seed}"));
            for rank in index.ranks() {
                assert_eq!(rank.fingerprint, fingerprint(&index.dump_rank(&rank.worker, 0)), "seed {seed}");
            }
            if random.chance(20) {
                let stats = index.stats();
                (unlinked, copies) = (unlinked + stats.unlinked, copies + stats.copies);
                private += stats.private_holders;
            }
        }
    }
    assert!(unlinked > 100 && copies > 20 && private > 100, "{unlinked} {copies} {private}");
}

fn store(index: &BlockIndex, worker: &str, parent: Option<u64>, names: impl IntoIterator<Item = u64>) {
    let names: Vec<_> = names.into_iter().map(BlockHash).collect();
    let contents: Vec<_> = names.iter().map(|name| name.0 ^ 0x5555).collect();
    index.store(worker, 0, Tier::Gpu, parent.map(BlockHash), &names, &contents).expect("lists of one length");
}

fn remove(index: &BlockIndex, worker: &str, names: impl IntoIterator<Item = u64>) {
    let names: Vec<_> = names.into_iter().map(BlockHash).collect();
    index.remove(worker, 0, Tier::Gpu, &names);
}

fn depth(index: &BlockIndex, names: impl IntoIterator<Item = u64>) -> u32 {
    let query: Vec<_> = names.into_iter().map(|name| name ^ 0x5555).collect();
    index.find(&query).depth(View::Device)
}

/// Checks that no temporary data remains after threads have changed the same ranks at once, between the parts of each
/// other's operations.
#[test]
fn threads_that_share_ranks_leave_nothing_behind() {
    for seed in 0..seeds(100) {
        let index = &BlockIndex::new(Config { block_size: 1, count_copies: seed % 2 == 0 }).expect("a block size");
        index.branch_from([1, 100][seed as usize % 2]);
        index.own_names_at_once([0, 100][seed as usize / 2 % 2]);
        index.turn_after([1, 5][seed as usize / 4 % 2]);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                scope.spawn(move || {
                    let random = &mut Random(seed * 3 + thread);
                    for _ in 0..600 {
                        let worker = format!("w{}", random.below(2));
                        let tier = *random.pick(&Tier::ALL);
                        let first = random.below(24);
                        let names = first..first + random.below(8);
                        let own = 100 * random.below(2);
                        let block_hashes: Vec<_> = names.clone().map(|it| BlockHash(it + own)).collect();
                        let parent = first.checked_sub(1).map(|it| BlockHash(it + own));
                        let contents: Vec<_> = names.collect();
                        match random.below(20) {
                            0 if random.chance(20) => index.drop_worker(&worker),
                            0 | 1 => index.clear(&worker, None, Some(tier)),
                            2..=13 => {
                                index.store(&worker, 0, tier, parent, &block_hashes, &contents).expect("sound lists");
                            }
                            _ => index.remove(&worker, 0, tier, &block_hashes),
                        }
                    }
                });
            }
        });
        index.settle();
        index.write(|writer| {
            assert!(writer.is_counted(), "seed {seed}");
            assert!(writer.watches.is_empty(), "seed {seed}");
            let busy = |(_, _, rank): (_, _, &super::holders::workers::Rank)| {
                rank.new_view.is_some() || rank.clearing.is_some()
            };
            assert!(!writer.workers.ranks().any(busy), "seed {seed}");
        });
        let again = BlockIndex::new(index.config()).expect("a block size");
        index.dump().iter().for_each(|event| again.apply(event).expect("a store"));
        // A worker without blocks is in no dump.
        let held =
            |index: &BlockIndex| index.workers().into_iter().filter(|(_, blocks)| *blocks > 0).collect::<Vec<_>>();
        assert_eq!(held(index), held(&again), "seed {seed}");
        let query: Vec<u64> = (0..32).collect();
        for view in View::ALL {
            let depths = |index: &BlockIndex| {
                let mut depths: Vec<_> = index
                    .find(&query)
                    .scores(view)
                    .iter()
                    .map(|(worker, depth)| (worker.to_string(), *depth))
                    .collect();
                depths.sort();
                depths
            };
            assert_eq!(depths(index), depths(&again), "seed {seed}");
        }
        ["w0", "w1"].iter().for_each(|worker| index.drop_worker(worker));
        let stats = index.stats();
        assert_eq!((stats.positions, stats.runs, stats.sets, stats.private_holders), (0, 0, 0, 0), "seed {seed}");
    }
}

/// Checks that the index refuses blocks that it cannot number, and reserves numbers for blocks that wait for a parent.
#[test]
fn more_than_can_be_numbered_is_refused_before_it_happens() {
    for children_first in [true, false] {
        let index = BlockIndex::new(Config::default()).expect("a block size");
        const MOST: usize = 200;
        index.write(|writer| writer.runs.pages_for_tests().set_most(MOST));
        let one = |parent: Option<u64>, name: u64| {
            let parent = parent.map(BlockHash);
            index.store("w", 0, Tier::Gpu, parent, &[BlockHash(name)], &[name]).is_ok()
        };
        let mut stored = usize::from(!children_first && one(None, 1));
        // Each child is a run with a page of its own, once its parent is stored.
        stored += (0..2 * MOST as u64).filter(|child| one(Some(1), 100 + child)).count();
        stored += usize::from(children_first && one(None, 1));
        let (blocks, pages) = (index.stats().blocks, index.write(|writer| writer.runs.pages_for_tests().used()));
        assert_eq!(blocks, stored as u64, "a store that is refused changes nothing");
        assert!(pages <= MOST && stored > MOST / 8 && stored < 2 * MOST, "{stored} stored, {pages} pages");
        assert!(!one(Some(1), 99) || children_first);
        index.clear("w", None, None);
        index.settle();
        assert!(one(None, 1) && one(Some(1), 100), "there is room again");
    }
}

/// Checks that a cleared rank, which gets another holder (a rank's cache), keeps its handle and its worker's number,
/// and that the departing holder counts for no rank.
#[test]
fn a_rank_is_the_same_after_a_clear() {
    let index = BlockIndex::new(Config::default()).expect("a block size");
    let handle = RankHandle::new("w", 0);
    let names: Vec<_> = (1..=2_000).map(BlockHash).collect();
    let contents: Vec<_> = names.iter().map(|name| name.0 ^ 0x5555).collect();
    let stored = || index.changes().store(&handle, Tier::Gpu, None, &names, &contents).expect("lists of one length");
    let numbered = || {
        let found = index.find(&contents);
        let mut out = Vec::new();
        found.scores_into(View::Device, &mut out);
        out.iter()
            .map(|&(number, depth)| (number, found.worker(number).map(ToString::to_string), depth))
            .collect::<Vec<_>>()
    };
    stored();
    index.store("w", 1, Tier::Gpu, None, &names[..10], &contents[..10]).expect("lists of one length");
    let before = numbered();
    assert_eq!(before, [(before[0].0, Some("w".to_owned()), 2_000)]);
    index.clear("w", Some(0), None);
    assert_eq!(numbered(), [(before[0].0, Some("w".to_owned()), 10)]);
    assert_eq!(index.chain_of(BlockHash(2_000)), None, "nobody holds it");
    assert!(index.chain_of(BlockHash(10)).is_some());
    index.clear("w", Some(1), None);
    stored();
    assert!(!index.agrees("w", 0, 1), "there is nobody else");
    assert_eq!(numbered(), before);
    index.changes().remove(&handle, Tier::Gpu, &names[1_000..]);
    assert_eq!(numbered(), [(before[0].0, Some("w".to_owned()), 1_000)]);
    // Another worker gets the number; the handle does not reach it.
    index.drop_worker("w");
    index.store("other", 0, Tier::Gpu, None, &names, &contents).expect("lists of one length");
    index.changes().remove(&handle, Tier::Gpu, &names);
    assert_eq!(numbered(), [(before[0].0, Some("other".to_owned()), 2_000)]);
    assert_eq!(index.find(&contents).worker(before[0].0 + 1), None);
    index.write(|writer| assert!(writer.is_counted()));
}

/// Checks that a large rank gets a private table of block hashes in steps, including blocks stored and removed
/// meanwhile.
#[test]
fn own_names_come_together_in_steps() {
    let index = BlockIndex::new(Config::default()).expect("a block size");
    const CHAINS: u64 = 200;
    let chain = |chain: u64| (chain << 20..).take(100);
    (0..CHAINS).for_each(|it| store(&index, "w", None, chain(it)));
    let depth_of = |first: u64, blocks: u64| {
        let query: Vec<_> = (first..first + blocks).map(|name| name ^ 0x5555).collect();
        u64::from(index.find(&query).depth(View::Device))
    };
    let private = || index.write(|writer| writer.counters.private_holders);
    // Another holder has these blocks under other block hashes.
    let (block_hashes, contents): (Vec<_>, Vec<_>) = (0..50).map(|at| (BlockHash(1 << 40 | at), 1 << 41 | at)).unzip();
    index.store("other", 0, Tier::Gpu, None, &block_hashes, &contents).expect("lists of one length");
    let again: Vec<_> = (0..50).map(|at| BlockHash(1 << 42 | at)).collect();
    let named = || index.store("w", 0, Tier::Gpu, None, &again, &contents).expect("lists of one length");
    let mut longest = steps_of(named).0;
    assert_eq!(private(), 0);
    assert_eq!(index.find(&contents).scores(View::Device).len(), 2);
    // Stores and removals until the private table is complete.
    let mut events = 0;
    while private() == 0 {
        let new = chain(CHAINS + events);
        longest = longest.max(steps_of(|| store(&index, "w", None, new)).0);
        longest = longest.max(steps_of(|| remove(&index, "w", chain(events).skip(50))).0);
        longest = longest.max(steps_of(|| index.remove("w", 0, Tier::Gpu, &again[49 - events as usize..])).0);
        index.write(|writer| assert!(writer.is_counted()));
        events += 1;
    }
    assert!(events > 5 && longest < 1_000, "{events} events, at most {longest} steps");
    for it in 0..CHAINS + events {
        assert_eq!(depth_of(it << 20, 100), if it < events { 50 } else { 100 });
    }
    assert_eq!(index.find(&contents).scores(View::Device).last().map(|it| u64::from(it.1)), Some(50 - events));
    assert_eq!(index.stats().blocks, 50 + (50 - events) + events * 50 + CHAINS * 100);
}

/// Checks that a second block hash of a position (run of blocks and offset) does not slow down stores and removals of
/// the rank's other chains.
#[test]
fn a_second_name_slows_no_other_chain_down() {
    let chain = |n: u64| (0..64).map(move |at| n << 8 | at);
    let steps_with = |names: u64| {
        let index = BlockIndex::new(Config::default()).expect("a block size");
        store(&index, "w", None, 1..=8);
        for name in 0..names {
            index.store("w", 0, Tier::Gpu, None, &[BlockHash(99 + name)], &[1 ^ 0x5555]).expect("lists of one length");
        }
        for n in 1..50 {
            store(&index, "w", None, chain(n));
            index.write(|writer| assert!(writer.is_counted()));
        }
        assert_eq!(depth(&index, chain(7)), 64);
        // Whole chains are removed at once: removing the blocks one by one would search the run each time.
        let (steps, ()) = steps_of(|| (1..50).for_each(|n| remove(&index, "w", chain(n).rev())));
        assert_eq!((index.stats().blocks, depth(&index, 1..=8)), (8 + names, 8));
        remove(&index, "w", [1]);
        // The other block hash still covers the first block, but nothing below it.
        assert_eq!(depth(&index, 1..=8), names.min(1) as u32);
        steps
    };
    let (without, with) = (steps_with(0), steps_with(1));
    assert!(with <= without + 1_000, "{with} steps, not {without}");
}

/// Checks the steps of storing a long chain that other workers hold under block hashes of their own: all its blocks get
/// block hashes in one pass, without a search for each block's number from the end of the run of blocks.
#[test]
fn a_chain_without_names_is_named_at_once() {
    let steps_of_length = |blocks: u64| {
        let index = BlockIndex::new(Config::default()).expect("a block size");
        // Its first block hash is taken by another block, so the holder has a private table.
        store(&index, "first", None, [1 << 40]);
        let names: Vec<_> = [1 << 40].into_iter().chain(1..blocks).map(BlockHash).collect();
        let contents: Vec<_> = (0..blocks).collect();
        index.store("own", 0, Tier::Gpu, None, &names, &contents).expect("lists of one length");
        assert_eq!(index.stats().private_holders, 1);
        let names: Vec<_> = (0..blocks).map(|at| BlockHash(1 << 50 | at)).collect();
        let stored = || index.store("shared", 0, Tier::Gpu, None, &names, &contents);
        let (steps, stored) = steps_of(stored);
        stored.expect("lists of one length");
        assert_eq!(index.stats().private_holders, 1, "it is called so by all others");
        index.write(|writer| assert!(writer.is_counted()));
        assert_eq!(index.find(&contents).by_rank(View::Device).len(), 2);
        steps
    };
    let (short, long) = (steps_of_length(500), steps_of_length(20_000));
    assert!(long <= 100 * short.max(10), "{long} steps for 40 times what takes {short}");
}

/// Checks that a dump of a holder (a rank's cache) with a private table sorts the block hashes by position (run of
/// blocks and offset) in slices.
#[test]
fn names_of_its_own_are_put_by_place_in_slices() {
    let index = BlockIndex::new(Config::default()).expect("a block size");
    store(&index, "first", None, [1 << 40]);
    index.store("own", 0, Tier::Gpu, None, &[BlockHash(2)], &[1 << 40 ^ 0x5555]).expect("lists of one length");
    for chain in 1..200 {
        store(&index, "own", None, (0..100).map(|at| chain << 8 | at));
    }
    assert_eq!(index.stats().private_holders, 1);
    let mut dump = index.dump_in_slices(1_000);
    let (mut slices, mut longest, mut dumped) = (0_u64, 0, 0);
    loop {
        let (steps, slice) = steps_of(|| dump.next());
        let Some(events) = slice else { break };
        (slices, longest, dumped) = (slices + 1, longest.max(steps), dumped + events.len());
        // The dump continues while blocks are stored and removed.
        store(&index, "own", None, [1 << 41 | slices]);
        if slices > 50 {
            remove(&index, "own", [1 << 41 | (slices - 50)]);
        }
        index.write(|writer| assert!(writer.is_counted()));
    }
    assert!(slices > 100 && longest < 1_500, "{slices} slices, {longest} steps");
    assert!(dumped > 200, "{dumped} events");
}
