//! Tests of the number of steps that events and lookups take: the same, or only a few more, however many blocks are
//! held.

use std::collections::HashSet;

use kvatlas_testing::{Random, seeds};

use super::{depth, remove, store};
use crate::index::{BlockIndex, Config};
use crate::reference::ReferenceIndex;
use crate::stats::steps_of;
use crate::types::{BlockHash, Event, Tier, View};

#[test]
fn sizes_are_told_without_a_walk_over_what_is_held() {
    let filled = |chains: u64| {
        let index = BlockIndex::new(Config::default()).expect("a block size");
        for chain in 0..chains {
            let names: Vec<_> = (0..8).map(|at| BlockHash(chain << 8 | at | 1 << 40)).collect();
            let contents: Vec<_> = names.iter().map(|name| name.0).collect();
            let worker = format!("w{}", chain % 10);
            // Orphans, private block hashes, copies and another tier: everything that is counted by itself elsewhere.
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

/// Checks the steps of an eviction at the end of a run of blocks that the conversations of all workers continue, by one
/// worker.
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
        // A worker with a conversation among unlisted children: its blocks become irregular, and then regular again.
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

/// Checks that creating or removing a run of blocks takes a constant number of steps, however many runs there are.
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
    // A table of 512 runs is allocated at once, and so is a table of a hundred lines of names.
    assert!(longest < 800, "{longest} steps");
}

/// Checks that an index that had many runs of blocks and has few can get many again: its new table is complete before
/// it is full.
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

/// Checks that clearing a large rank takes no longer than clearing a small one, and that no later event takes longer.
#[test]
fn what_is_cleared_goes_in_steps() {
    let cleared = |chains: u64, drop: bool| {
        let index = BlockIndex::new(Config::default()).expect("a block size");
        for chain in 0..chains {
            // Blocks of all kinds: plain, below a hole, with a second copy.
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
        // A restarted engine stores at once, with other block hashes for some of the same prompts.
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

/// Checks that opening and filling a hole takes a number of steps that depends on the number of runs of blocks after
/// it, not of blocks.
#[test]
fn what_is_below_a_hole_goes_run_by_run() {
    let hole = |blocks: u64| {
        let index = BlockIndex::new(Config::default()).expect("a block size");
        for worker in ["w", "other"] {
            store(&index, worker, None, 0..blocks);
            // Two conversations: one continues the missing block, the other a later one.
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
        // Blocks below the hole are stored and removed, another hole is made, and the first block after that is
        // removed.
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

/// Checks that outdated entries are removed from a holder's list of runs of blocks in steps, while runs are added and
/// left.
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
        // First most chains are removed, then chains come and go.
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
    // A table of 512 runs is allocated at once.
    assert!(in_steps > 500 && longest < 600, "{in_steps} events while it was put right, at most {longest} steps");
    let runs = index.write(|writer| writer.holders.iter().map(|it| it.runs.len()).max());
    assert!(runs < Some(2 * held.len() + 2_000), "{runs:?} listed, {} held", held.len());
}

/// Checks that a view (set of tiers) is prepared in steps and a tier is cleared in steps, while other events change the
/// rank.
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
            // Work in parts is begun, and the event comes before it is complete.
            let other = Tier::ALL[1 + random.below(3) as usize];
            match random.below(3) {
                0 => {
                    for _ in 0..random.below(20) {
                        prepared += usize::from(index.write(|writer| {
                            let rank = writer.number_of(&(&*worker, rank));
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

/// Checks that removing one of many blocks with the same unknown parent does not visit the others.
#[test]
fn orphans_of_one_parent_go_one_by_one_in_as_many_steps() {
    let orphans = |count: u64| {
        let index = BlockIndex::new(Config::default()).expect("a block size");
        (0..count).for_each(|orphan| store(&index, "w", Some(9), [100 + orphan]));
        // In an order that is neither the order of storing nor its reverse.
        let order: Vec<u64> = (0..count).map(|i| i * 7_919 % count).collect();
        let (steps, ()) = steps_of(|| order.iter().for_each(|orphan| remove(&index, "w", [100 + orphan])));
        assert_eq!(index.stats().blocks, 0);
        steps as u64
    };
    let (few, many) = (orphans(500), orphans(10_000));
    assert!(many <= few * 20 * 2 + 10_000, "{few} {many}");
}
