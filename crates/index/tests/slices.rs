//! A dump in slices, with changes between them: each rank comes out as it was at one moment, and no slice is long.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use kvatlas_index::{BlockHash, BlockIndex, Config, CopyState, Event, RankCopier, Tier};
use kvatlas_testing::{Random, seeds};

mod streams;

use streams::{plan, sorted};

/// Events of what is held of one rank right now.
fn now(index: &BlockIndex, worker: &str, rank: u32) -> Vec<String> {
    let of = |event: &Event| matches!(event, Event::Store { worker: w, rank: r, .. } if **w == *worker && *r == rank);
    sorted(index.dump().into_iter().filter(of).collect())
}

fn place(event: &Event) -> (String, u32) {
    let Event::Store { worker, rank, .. } = event else { panic!("a dump is of stores") };
    (worker.to_string(), *rank)
}

#[test]
fn each_rank_is_as_it_was_at_one_moment() {
    let (mut in_between, mut unfinished) = (0, 0);
    for seed in 0..seeds(300) {
        let plan = plan(seed, 400);
        let random = &mut Random(seed);
        let index = BlockIndex::new(plan.config).expect("a block size");
        index.branch_from(plan.branch_from);
        index.turn_after(plan.turn_after);
        index.own_names_at_once(plan.own_names_at_once);
        let mut events = plan.events.iter().cycle();
        let before = 100 + random.index(300);
        for event in events.by_ref().take(before) {
            index.apply(event).expect("a plan's event");
        }
        let steps = *random.pick(&[1, 20, 100, 1000]);
        let mut dump = index.dump_in_slices(steps);
        let mut told = BTreeSet::new();
        for _ in 0..1_000_000 {
            let Some(got) = dump.next() else { break };
            if let Some(first) = got.first() {
                let (worker, rank) = place(first);
                assert!(got.iter().all(|event| place(event) == (worker.clone(), rank)), "one rank a slice");
                assert!(told.insert((worker.clone(), rank)), "seed {seed}: rank {rank} of {worker} twice");
                assert_eq!(sorted(got), now(&index, &worker, rank), "seed {seed}: rank {rank} of {worker}");
            } else {
                unfinished += 1;
            }
            for _ in 0..random.below(3) {
                // The same events again and again: most say what is known, with other copies.
                index.apply(events.next().expect("a cycle")).expect("a plan's event");
                in_between += 1;
            }
        }
        assert!(dump.next().is_none(), "seed {seed}: it has an end");
        drop(dump);
    }
    assert!(in_between > 100 && unfinished > 100, "{in_between} changes between, {unfinished} slices of large ranks");
}

/// `chains` of 8 blocks after 8 that all share, on the device, every third on the host as well.
fn large(chains: u64) -> BlockIndex {
    let index = BlockIndex::new(Config::default()).expect("a block size");
    for chain in 0..chains {
        let block = |at: u64| if at < 8 { at + 1 } else { (chain + 1) << 8 | at };
        let names: Vec<_> = (0..16).map(|at| BlockHash(block(at))).collect();
        let contents: Vec<_> = (0..16).map(block).collect();
        index.store("w", 0, Tier::Gpu, None, &names, &contents).expect("lists of one length");
        if chain % 3 == 0 {
            index.store("w", 0, Tier::Cpu, None, &names, &contents).expect("lists of one length");
        }
    }
    index
}

#[test]
fn no_slice_is_longer_than_it_may_be() {
    const STEPS: usize = 4000;
    let index = large(5_000);
    let whole = now(&index, "w", 0);
    let mut dump = index.dump_in_slices(STEPS);
    let (mut slices, mut got) = (0, Vec::new());
    while let Some(events) = dump.next() {
        // A run more than there was room for, at most.
        assert!(dump.spent() <= STEPS + 1000, "{} steps", dump.spent());
        slices += 1;
        got.extend(events);
        // A writer is always busy.
        let name = BlockHash(1 << 40 | slices);
        index.store("w", 0, Tier::Gpu, None, &[name], &[1 << 40 | slices]).expect("lists of one length");
        index.remove("w", 0, Tier::Gpu, &[name]);
    }
    assert!(slices > 50, "{slices} slices of so much");
    assert_eq!(sorted(got), whole);
}

#[test]
fn who_stops_in_the_middle_leaves_nothing_behind() {
    let index = large(500);
    let before = index.stats();
    let mut dump = index.dump_in_slices(100);
    assert_eq!(dump.next(), Some(Vec::new()), "it is too much for one slice");
    index.store("w", 0, Tier::Gpu, None, &[BlockHash(7 << 40)], &[7 << 40]).expect("lists of one length");
    drop(dump);
    index.remove("w", 0, Tier::Gpu, &[BlockHash(7 << 40)]);
    assert_eq!(index.stats().blocks, before.blocks);
    assert_eq!(index.dump_in_slices(usize::MAX).flatten().count(), index.dump().len());
}

#[test]
fn a_rank_that_is_cleared_or_dropped_meanwhile_comes_out_as_it_is_then() {
    for drops in [false, true] {
        let index = large(500);
        let mut dump = index.dump_in_slices(100);
        for _ in 0..5 {
            assert_eq!(dump.next(), Some(Vec::new()));
        }
        if drops {
            index.drop_worker("w")
        } else {
            index.clear("w", None, None)
        }
        index.store("w", 0, Tier::Gpu, None, &[BlockHash(9)], &[9]).expect("lists of one length");
        let rest: Vec<Event> = dump.flatten().collect();
        assert_eq!(sorted(rest), now(&index, "w", 0));
    }
}

#[test]
fn a_copy_of_a_rank_is_as_it_was_at_its_last_step() {
    let mut in_between = 0;
    for seed in 0..seeds(100) {
        let plan = plan(seed, 400);
        let random = &mut Random(seed);
        let index = Arc::new(BlockIndex::new(plan.config).expect("a block size"));
        let mut events = plan.events.iter().cycle();
        let before = 100 + random.index(300);
        for event in events.by_ref().take(before) {
            index.apply(event).expect("a plan's event");
        }
        let steps = *random.pick(&[1, 20, 100, 1000]);
        for rank in index.ranks() {
            let mut copier = RankCopier::new(index.clone(), &rank.worker, rank.rank);
            let (copy, wanted) = loop {
                match copier.step(steps) {
                    CopyState::More(more) => copier = more,
                    CopyState::Done(done) => break (done.sorted(), now(&index, &rank.worker, rank.rank)),
                }
                for _ in 0..random.below(3) {
                    index.apply(events.next().expect("a cycle")).expect("a plan's event");
                    in_between += 1;
                }
            };
            let got = sorted(copy.events(&rank.worker, rank.rank));
            assert_eq!(got, wanted, "seed {seed}: rank {} of {}", rank.rank, rank.worker);
            // In this order, it makes an equal rank.
            let other = BlockIndex::new(plan.config).expect("a block size");
            for event in copy.events(&rank.worker, rank.rank) {
                other.apply(&event).expect("a plan's event");
            }
            assert_eq!(now(&other, &rank.worker, rank.rank), wanted, "seed {seed}");
        }
    }
    assert!(in_between > 100, "{in_between} changes between");
    let index = Arc::new(large(50));
    assert!(matches!(RankCopier::new(index, "nobody", 0).step(10), CopyState::Done(_)));
}

#[test]
fn words_do_not_depend_on_how_streams_are_interleaved() {
    let (mut compared, seeds) = (0, seeds(100));
    for seed in 0..seeds {
        let plan = plan(seed, 300);
        let random = &mut Random(seed);
        let one = BlockIndex::new(plan.config).expect("a block size");
        plan.events.iter().for_each(|event| one.apply(event).expect("a plan's event"));
        // The same streams, each in its order, one event of any of them after the other.
        let of = |event: &Event| match event {
            Event::Store { worker, .. }
            | Event::Remove { worker, .. }
            | Event::Clear { worker, .. }
            | Event::Drop { worker } => worker.clone(),
        };
        let mut streams: BTreeMap<Box<str>, VecDeque<&Event>> = BTreeMap::new();
        plan.events.iter().for_each(|event| streams.entry(of(event)).or_default().push_back(event));
        let mut streams: Vec<_> = streams.into_values().collect();
        let other = BlockIndex::new(plan.config).expect("a block size");
        while !streams.is_empty() {
            let at = random.index(streams.len());
            match streams[at].pop_front() {
                Some(event) => other.apply(event).expect("a plan's event"),
                None => drop(streams.swap_remove(at)),
            }
        }
        let words = |index: &BlockIndex| -> Vec<_> {
            index.ranks().into_iter().map(|it| (it.worker, it.rank, it.fingerprint)).collect()
        };
        assert_eq!(words(&one), words(&other), "seed {seed}");
        compared += one.ranks().len();
        // Nor are they equal if a block is not.
        if let Some(Event::Store { worker, rank, tier, block_hashes, .. }) = one.dump().first() {
            let before = words(&one);
            one.clear(worker, Some(*rank), Some(*tier));
            assert_ne!(words(&one), before, "seed {seed}: {block_hashes:?}");
        }
    }
    assert!(compared * 2 > seeds as usize * 5, "{compared} ranks");
}
