//! Counts that are kept as things change, against what they are when counted anew; and nobody who asks for sizes walks.

use std::collections::HashSet;

use kvatlas_testing::{Random, seeds};

use super::holder::Holder;
use super::state::Writer;
use crate::fingerprint::word;
use crate::handle::RankHandle;
use crate::index::{BlockIndex, Config};
use crate::position::Position;
use crate::raw::Level;
use crate::reference::ReferenceIndex;
use crate::steps::steps_of;
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

/// The word of what a dump of one rank has.
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

#[test]
fn sizes_are_told_without_a_walk_over_what_is_held() {
    let filled = |chains: u64| {
        let index = BlockIndex::new(Config::default()).expect("a block size");
        for chain in 0..chains {
            let names: Vec<_> = (0..8).map(|at| BlockHash(chain << 8 | at | 1 << 40)).collect();
            let contents: Vec<_> = names.iter().map(|name| name.0).collect();
            let worker = format!("w{}", chain % 10);
            // Orphans, names of one's own, copies, another tier: whatever is counted one by one elsewhere.
            let parent = (chain % 3 == 0).then_some(BlockHash(9));
            let own: Vec<_> = names.iter().map(|name| BlockHash(name.0 ^ (chain % 10) << 50)).collect();
            for (names, tier) in [(&names, Tier::Gpu), (&names, Tier::Gpu), (&own, Tier::Gpu), (&names, Tier::Cpu)] {
                index.store(&worker, 0, tier, parent, names, &contents).expect("lists of one length");
            }
        }
        index
    };
    let steps = |index: &BlockIndex| {
        index.settle();
        let (stats, held) = steps_of(|| index.stats());
        assert!(held.unlinked > 0 && held.copies > 0, "{held:?}");
        (stats, steps_of(|| index.ranks()).0, steps_of(|| index.workers()).0, steps_of(|| index.ranks_of("w1")).0)
    };
    let (few, many) = (steps(&filled(60)), steps(&filled(3_000)));
    assert_eq!(few, many);
    assert!(few.0 > 0 && few.0 < 100, "{few:?}");
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

/// Everybody's conversations hang on a run of which one worker evicts the end.
#[test]
fn the_tail_of_a_busy_run_goes_without_a_look_at_all_that_hangs_on_it() {
    let busy = |children: u64| {
        let index = BlockIndex::new(Config::default()).expect("a block size");
        store(&index, "tail", None, 1..=8);
        for child in 0..children {
            let worker = format!("w{}", child % 7);
            if child < 7 {
                store(&index, &worker, None, 1..=8);
            }
            store(&index, &worker, Some(8), [1_000 + child]);
        }
        let (tail, ()) = steps_of(|| remove(&index, "tail", [8]));
        assert_eq!(depth(&index, 1..=8), 8);
        // One that has a conversation among those that are not listed: it is aside from then on, and comes back.
        let last = 1_000 + children - 1;
        let worker = format!("w{}", (children - 1) % 7);
        remove(&index, &worker, [8]);
        let found = index.find(&(1..=8).chain([last]).map(|name| name ^ 0x5555).collect::<Vec<_>>());
        let depths = found.scores(View::Device);
        assert!(depths.iter().any(|(name, depth)| ***name == *worker && *depth == 7), "{depths:?}");
        drop(found);
        store(&index, &worker, Some(7), [8]);
        assert_eq!(depth(&index, (1..=8).chain([last])), 9);
        tail
    };
    let (few, many) = (busy(100), busy(5_000));
    assert_eq!(few, many);
    assert!(few < 64, "{few} steps");
}

/// Runs come and go in as many steps, however many there are.
#[test]
fn tables_grow_and_shrink_a_little_at_a_time() {
    const CHAINS: u64 = 60_000;
    let index = BlockIndex::new(Config::default()).expect("a block size");
    let mut longest = 0;
    for chain in 0..CHAINS {
        longest = longest.max(steps_of(|| store(&index, "w", None, [chain])).0);
        if chain % 7_919 == 0 {
            assert!((0..=chain).step_by(97).all(|chain| depth(&index, [chain]) == 1));
            index.write(|writer| assert!(writer.is_counted()));
        }
    }
    for chain in 0..CHAINS {
        longest = longest.max(steps_of(|| remove(&index, "w", [chain])).0);
        if chain % 7_919 == 0 {
            assert!((chain + 1..CHAINS).step_by(97).all(|chain| depth(&index, [chain]) == 1));
            assert_eq!(depth(&index, [chain]), 0);
            index.write(|writer| assert!(writer.is_counted()));
        }
    }
    // A table of 512 runs is made at once, and so is one of a hundred lines of names.
    assert!(longest < 800, "{longest} steps");
}

/// An index that had many runs, and has few left, may have many again: a table of them is complete before it is full.
#[test]
fn a_table_grows_in_time_where_there_were_many_runs() {
    const CHAINS: u64 = 20_000;
    let index = BlockIndex::new(Config::default()).expect("a block size");
    for round in 0..3 {
        (0..CHAINS).for_each(|chain| store(&index, "w", None, [round << 32 | chain]));
        (1..CHAINS).for_each(|chain| remove(&index, "w", [round << 32 | chain]));
        index.write(|writer| assert!(writer.is_counted()));
        assert!((0..=round).all(|round| depth(&index, [round << 32]) == 1));
    }
    assert_eq!(index.stats().blocks, 3);
}

/// To clear what is much takes no longer than to clear what is little, nor does any event that follows.
#[test]
fn what_is_cleared_goes_in_steps() {
    let cleared = |chains: u64, drop: bool| {
        let index = BlockIndex::new(Config::default()).expect("a block size");
        for chain in 0..chains {
            // Some of all kinds: plain, below a hole, with a second copy.
            store(&index, "w", None, (0..32).map(|at| chain << 8 | at | 1 << 40));
            if chain % 8 == 0 {
                remove(&index, "w", [chain << 8 | 3 | 1 << 40]);
                store(&index, "w", None, [chain << 8 | 1 << 40]);
            }
        }
        let (at_once, ()) = steps_of(|| if drop { index.drop_worker("w") } else { index.clear("w", None, None) });
        assert_eq!(depth(&index, (0..32).map(|at| at | 1 << 40)), 0, "readers see it at once");
        assert_eq!(index.workers().iter().map(|(_, blocks)| blocks).sum::<u64>(), 0);
        let mut longest = 0;
        // Another engine life begins at once, with other block hashes for some of the same prompts.
        for chain in 0..chains {
            let salt = (chain % 2) << 41;
            let names: Vec<_> = (0..32).map(|at| BlockHash(chain << 8 | at | 1 << 40 | salt)).collect();
            let contents: Vec<_> = (0..32).map(|at| (chain << 8 | at | 1 << 40) ^ 0x5555).collect();
            let stored = || index.store("w", 0, Tier::Gpu, None, &names, &contents).expect("lists of one length");
            longest = longest.max(steps_of(stored).0);
            assert_eq!(index.find(&contents).depth(View::Device), 32);
            if chain % 64 == 0 {
                index.write(|writer| assert!(writer.is_counted()));
            }
        }
        let stats = index.stats();
        assert_eq!((stats.blocks, stats.positions, stats.private_holders), (chains * 32, chains * 32, 0));
        index.write(|writer| assert!(writer.is_counted()));
        (at_once, longest)
    };
    for drop in [false, true] {
        let (few, many) = (cleared(100, drop), cleared(2_000, drop));
        assert!(many.0 <= few.0 + 512 && many.1 <= few.1 + 4_096, "{few:?} {many:?}");
    }
}

/// A hole is opened and filled in as many steps as runs are below it, however many blocks these have.
#[test]
fn what_is_below_a_hole_goes_run_by_run() {
    let hole = |blocks: u64| {
        let index = BlockIndex::new(Config::default()).expect("a block size");
        for worker in ["w", "other"] {
            store(&index, worker, None, 0..blocks);
            // Two conversations, one of which hangs on the missing block.
            store(&index, worker, Some(10), (0..4).map(|at| 1 << 40 | at));
            store(&index, worker, Some(50), (0..4).map(|at| 1 << 41 | at));
        }
        let depth_of = |worker: &str| {
            let query: Vec<_> = (0..blocks).map(|name| name ^ 0x5555).collect();
            let found = index.find(&query);
            found.scores(View::Device).into_iter().find(|(name, _)| ***name == *worker).map_or(0, |(_, depth)| depth)
        };
        let unlinked = || index.stats().unlinked;
        let mut steps = [0; 6];
        let mut time = |at: usize, event: &dyn Fn()| {
            steps[at] = steps_of(event).0;
            index.write(|writer| assert!(writer.is_counted()));
            assert_eq!(u64::from(depth_of("other")), blocks);
        };
        time(0, &|| remove(&index, "w", [10]));
        assert_eq!((depth_of("w"), unlinked()), (10, blocks - 11 + 8));
        // What is below grows and shrinks there; another hole in it; and the first block after a hole goes.
        time(1, &|| store(&index, "w", Some(blocks - 1), [1 << 42]));
        time(2, &|| remove(&index, "w", [1 << 42, 40]));
        time(3, &|| remove(&index, "w", [41]));
        assert_eq!((depth_of("w"), unlinked()), (10, blocks - 13 + 8));
        time(4, &|| store(&index, "w", Some(9), [10]));
        assert_eq!((depth_of("w"), unlinked()), (40, blocks - 42 + 4));
        time(5, &|| store(&index, "w", Some(39), [40, 41]));
        assert_eq!((u64::from(depth_of("w")), unlinked()), (blocks, 0));
        assert_eq!(index.stats().blocks, 2 * (blocks + 8));
        steps
    };
    let (few, many) = (hole(1_000), hole(60_000));
    assert!(many.iter().zip(&few).all(|(many, few)| *many <= few + 16 && *many < 1_000), "{few:?} {many:?}");
}

/// A rank that has much gets names of its own in steps, and is held to what it said meanwhile.
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
    // Others have these blocks under other names.
    let (block_hashes, contents): (Vec<_>, Vec<_>) = (0..50).map(|at| (BlockHash(1 << 40 | at), 1 << 41 | at)).unzip();
    index.store("other", 0, Tier::Gpu, None, &block_hashes, &contents).expect("lists of one length");
    let again: Vec<_> = (0..50).map(|at| BlockHash(1 << 42 | at)).collect();
    let named = || index.store("w", 0, Tier::Gpu, None, &again, &contents).expect("lists of one length");
    let mut longest = steps_of(named).0;
    assert_eq!(private(), 0);
    assert_eq!(index.find(&contents).scores(View::Device).len(), 2);
    // What comes and goes until all of them are there.
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

/// The list of the runs that a holder has entered is put right in steps, whatever comes and goes meanwhile.
#[test]
fn the_list_of_runs_is_put_right_in_steps() {
    let index = BlockIndex::new(Config::default()).expect("a block size");
    let random = &mut Random(7);
    const CHAINS: u64 = 3_000;
    (0..CHAINS).for_each(|chain| store(&index, "w", None, [chain]));
    let (mut longest, mut in_steps) = (0, 0);
    let mut held: HashSet<u64> = (0..CHAINS).collect();
    for event in 0..10_000 {
        let chain = random.below(CHAINS);
        // First most go, then they come and go.
        let comes = if event < 5_000 { random.chance(10) } else { random.chance(50) };
        let event_steps = if comes {
            held.insert(chain);
            steps_of(|| store(&index, "w", None, [chain])).0
        } else {
            held.remove(&chain);
            steps_of(|| remove(&index, "w", [chain])).0
        };
        longest = longest.max(event_steps);
        index.write(|writer| {
            let it = writer.holders.iter().max_by_key(|it| it.entered).expect("a holder");
            in_steps += usize::from(it.tidying.is_some());
            assert!(it.runs.len() <= 3 * it.entered as usize + CHAINS as usize);
            if event % 100 == 0 {
                assert!(writer.is_counted());
            }
        });
    }
    // A table of 512 runs is made at once.
    assert!(in_steps > 500 && longest < 600, "{in_steps} events while it was put right, at most {longest} steps");
    let runs = index.write(|writer| writer.holders.iter().map(|it| it.runs.len()).max());
    assert!(runs < Some(2 * held.len() + 2_000), "{runs:?} listed, {} held", held.len());
}

/// A view that a rank will need comes together, and a tier is cleared, while anything happens to the rank.
#[test]
fn views_come_and_tiers_go_in_steps_between_events() {
    let (mut prepared, mut cleared, mut some) = (0, 0, 0);
    for seed in 0..seeds(200) {
        let random = &mut Random(seed);
        let index = BlockIndex::new(Config { block_size: 1, count_copies: random.chance(50) }).expect("a block size");
        let mut reference = ReferenceIndex::new(index.config().count_copies);
        index.branch_from([1, 3, 100][seed as usize % 3]);
        index.own_names_at_once([0, 5, 100][seed as usize / 3 % 3]);
        index.turn_after(*random.pick(&[1, 3, 20]));
        let steps = *random.pick(&[1, 8, 40]);
        let alike = random.chance(50);
        let mut queries: Vec<Vec<u64>> = vec![(0..32).collect()];
        for _ in 0..200 {
            let (worker, rank) = (format!("w{}", random.below(2)), random.below(2) as u32);
            let tier = if random.chance(30) { *random.pick(&Tier::ALL) } else { Tier::Gpu };
            let first = random.below(24);
            let names =
                (first..first + random.below(8)).map(|it| if random.chance(95) { it } else { random.below(32) });
            let names: Vec<u64> = names.collect();
            let own = if alike { 0 } else { 100 * random.below(2) };
            let block_hashes: Vec<_> = names.iter().map(|it| BlockHash(it + own)).collect();
            let parent = first.checked_sub(1).map(|it| BlockHash(it + own));
            let to = worker.as_str().into();
            let only = random.chance(50).then_some(rank);
            let event = match random.below(20) {
                0 if random.chance(30) => Event::Drop { worker: to },
                0 => Event::Clear { worker: to, rank: only, tier: None },
                1..=2 => Event::Clear { worker: to, rank: only, tier: Some(tier) },
                3..=13 => Event::Store { worker: to, rank, tier, parent, block_hashes, content_hashes: names.clone() },
                _ => Event::Remove { worker: to, rank, tier, block_hashes },
            };
            // Some of what is done in parts begins, and the event comes in between.
            let other = Tier::ALL[1 + random.below(3) as usize];
            match random.below(3) {
                0 => {
                    for _ in 0..random.below(20) {
                        prepared += usize::from(index.write(|writer| {
                            let rank = writer.number_of(&worker, rank);
                            writer.prepare(rank, other, true, steps)
                        }));
                    }
                }
                1 if random.chance(20) => {
                    let clear = Event::Clear { worker: worker.as_str().into(), rank: None, tier: Some(other) };
                    reference.apply(&clear).expect("a clear");
                    for rank in index.write(|writer| writer.clear(&worker, None, Some(other))) {
                        for _ in 0..random.below(6) {
                            cleared += usize::from(index.write(|writer| writer.go_on_clearing(rank, steps)));
                        }
                    }
                }
                _ => {}
            }
            index.apply(&event).expect("a sound event");
            reference.apply(&event).expect("a sound event");
            index.write(|writer| {
                (0..4).for_each(|rank| writer.finish_clearing(rank));
                assert!(writer.is_counted(), "seed {seed}");
            });
            if names.len() > 2 && queries.len() < 16 {
                queries.push((0..first).chain(names).chain(first..32).collect());
            }
            for (query, view) in queries.iter().flat_map(|query| View::ALL.map(|view| (query, view))) {
                let (found, expected) = (index.find(query), reference.find(query));
                let (mut got, mut want) = (found.by_rank(view), expected.by_rank(view));
                got.sort();
                want.sort();
                let want = want.iter().map(|(worker, rank, depth)| (worker, *rank, *depth));
                assert!(got.iter().copied().eq(want), "seed {seed}, {view:?}, after {event:?}: {got:?}");
                some += got.len();
            }
            assert_eq!(index.workers(), {
                let mut workers = reference.workers();
                workers.sort();
                workers
            });
        }
        for worker in ["w0", "w1"] {
            index.drop_worker(worker);
        }
        let stats = index.stats();
        assert_eq!((stats.positions, stats.runs, stats.sets), (0, 0, 0), "seed {seed}");
    }
    assert!(prepared > 50 && cleared > 20 && some > 2_000, "{prepared} {cleared} {some}");
}

/// Threads that share ranks come in between each other's parts: nothing is left of what they made for the time being.
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
            let busy = |(_, _, rank): (_, _, &super::workers::Rank)| rank.new_view.is_some() || rank.clearing.is_some();
            assert!(!writer.workers.ranks().any(busy), "seed {seed}");
        });
        let again = BlockIndex::new(index.config()).expect("a block size");
        index.dump().iter().for_each(|event| again.apply(event).expect("a store"));
        // Who has nothing is in no dump.
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

/// An orphan is found among those of its parent without a look at them.
#[test]
fn orphans_of_one_parent_go_one_by_one_in_as_many_steps() {
    let orphans = |count: u64| {
        let index = BlockIndex::new(Config::default()).expect("a block size");
        (0..count).for_each(|orphan| store(&index, "w", Some(9), [100 + orphan]));
        // In an order that is neither that of coming nor its reverse.
        let order: Vec<u64> = (0..count).map(|i| i * 7_919 % count).collect();
        let (steps, ()) = steps_of(|| order.iter().for_each(|orphan| remove(&index, "w", [100 + orphan])));
        assert_eq!(index.stats().blocks, 0);
        steps as u64
    };
    let (few, many) = (orphans(500), orphans(10_000));
    assert!(many <= few * 20 * 2 + 10_000, "{few} {many}");
}

/// There are numbers for so many blocks and no more; those that wait for others are thought of before they come.
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
        // Each is a run of its own, with a page of its own, as soon as its parent is there.
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

/// A rank that is cleared goes on under another holder: its handle and its worker's number mean it still, and what is on
/// its way out counts as nobody's.
#[test]
fn a_rank_is_the_same_after_a_clear() {
    let index = BlockIndex::new(Config::default()).expect("a block size");
    let handle = RankHandle::new("w", 0);
    let names: Vec<_> = (1..=2_000).map(BlockHash).collect();
    let contents: Vec<_> = names.iter().map(|name| name.0 ^ 0x5555).collect();
    let stored = || index.changes().store_to(&handle, Tier::Gpu, None, &names, &contents).expect("lists of one length");
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
    index.changes().remove_from(&handle, Tier::Gpu, &names[1_000..]);
    assert_eq!(numbered(), [(before[0].0, Some("w".to_owned()), 1_000)]);
    // Another comes by its number; the handle does not reach it.
    index.drop_worker("w");
    index.store("other", 0, Tier::Gpu, None, &names, &contents).expect("lists of one length");
    index.changes().remove_from(&handle, Tier::Gpu, &names);
    assert_eq!(numbered(), [(before[0].0, Some("other".to_owned()), 2_000)]);
    assert_eq!(index.find(&contents).worker(before[0].0 + 1), None);
    index.write(|writer| assert!(writer.is_counted()));
}

/// A second name of a position concerns the chain that it is in, and no other that the rank stores or evicts.
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
        // Whole chains go at once: were each block taken out by itself, its run would be looked through every time.
        let (steps, ()) = steps_of(|| (1..50).for_each(|n| remove(&index, "w", chain(n).rev())));
        assert_eq!((index.stats().blocks, depth(&index, 1..=8)), (8 + names, 8));
        remove(&index, "w", [1]);
        // The other name still holds it, and nothing that was below the first.
        assert_eq!(depth(&index, 1..=8), names.min(1) as u32);
        steps
    };
    let (without, with) = (steps_with(0), steps_with(1));
    assert!(with <= without + 1_000, "{with} steps, not {without}");
}

/// A worker that stores a long chain that is there, and that nobody calls as others do, names it at once: not by
/// looking for each block's number from the end of the run.
#[test]
fn a_chain_without_names_is_named_at_once() {
    let steps_of_length = |blocks: u64| {
        let index = BlockIndex::new(Config::default()).expect("a block size");
        // Its first name is taken, so it has names of its own.
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

/// A dump needs to know names by their places. Of a rank that has names of its own, those are put there in slices, too.
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
        // It goes on as names come and go.
        store(&index, "own", None, [1 << 41 | slices]);
        if slices > 50 {
            remove(&index, "own", [1 << 41 | (slices - 50)]);
        }
        index.write(|writer| assert!(writer.is_counted()));
    }
    assert!(slices > 100 && longest < 1_500, "{slices} slices, {longest} steps");
    assert!(dumped > 200, "{dumped} events");
}
