//! Snapshots: an index comes back as it was, and damaged bytes are refused, never more than that. A dump in slices, with
//! changes between them, has each rank as it was at one moment, and no slice is long.

mod streams;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use kvatlas_index::{BlockHash, BlockIndex, Config, CopyState, Event, RankCopier, Stats, Tier};
use kvatlas_testing::{Random, seeds};
use xxhash_rust::xxh3::xxh3_64;

use self::streams::{plan, sorted};

fn after(config: Config, events: &[Event]) -> BlockIndex {
    let index = BlockIndex::new(config).expect("a block size");
    events.iter().for_each(|event| index.apply(event).expect("an index that is not full"));
    index
}

/// Blocks that are held, by whom, as often as they are held: a dump without its order.
type Held = BTreeMap<(Box<str>, u32, Tier, BlockHash, Option<BlockHash>, u64), usize>;

fn held(index: &BlockIndex) -> Held {
    let mut held = Held::new();
    let dump = index.dump();
    let by_rank: Vec<Event> = index.ranks().iter().flat_map(|rank| index.dump_rank(&rank.worker, rank.rank)).collect();
    assert_eq!(by_rank, dump);
    for event in dump {
        let Event::Store { worker, rank, tier, parent, block_hashes, content_hashes } = event else {
            panic!("a dump is stores only");
        };
        let mut before = parent;
        for (&name, content) in block_hashes.iter().zip(content_hashes) {
            *held.entry((worker.clone(), rank, tier, name, before, content)).or_default() += 1;
            before = Some(name);
        }
    }
    held
}

/// The numbers that do not depend on how the contents came to be.
fn counts(stats: &Stats) -> [u64; 10] {
    [
        stats.workers,
        stats.blocks,
        stats.unlinked,
        stats.copies,
        stats.stores,
        stats.removes,
        stats.clears,
        stats.drops,
        stats.replaced,
        stats.unknown_removals,
    ]
}

#[test]
fn an_index_comes_back() {
    for seed in 0..seeds(300) {
        let plan = streams::plan(seed, 40 + seed as usize % 200);
        let index = after(plan.config, &plan.events);
        let back = BlockIndex::from_snapshot(&index.snapshot()).expect("an undamaged snapshot");
        assert_eq!(back.config(), index.config(), "seed {seed}");
        assert_eq!(held(&back), held(&index), "seed {seed}");
        assert_eq!(back.workers(), index.workers(), "seed {seed}");
        assert_eq!(counts(&back.stats()), counts(&index.stats()), "seed {seed}");
        for query in &plan.queries {
            let (ours, wanted) = (back.find(query), index.find(query));
            for view in kvatlas_index::View::ALL {
                let sorted = |mut depths: Vec<_>| {
                    depths.sort();
                    depths
                };
                assert_eq!(sorted(ours.by_rank(view)), sorted(wanted.by_rank(view)), "seed {seed}");
            }
        }
    }
}

/// Bytes whose sections have checksums that fit them, as far as there are whole sections.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let mut at = 12;
    while let Some(head) = bytes.get(at..).and_then(|rest| rest.first_chunk::<9>()).copied() {
        let length = u64::from_le_bytes(head[1..].try_into().expect("eight bytes"));
        let end = usize::try_from(length).ok().and_then(|length| (at + 9).checked_add(length));
        let Some(payload) = end.and_then(|end| bytes.get(at + 9..end)) else { break };
        let sums = [xxh3_64(&head).to_le_bytes(), xxh3_64(payload).to_le_bytes()];
        let (sum, end) = (xxh3_64(&sums.concat()).to_le_bytes(), at + 9 + payload.len());
        let Some(place) = bytes.get_mut(end..end + 8) else { break };
        place.copy_from_slice(&sum);
        at = end + 8;
    }
    bytes
}

#[test]
fn damage_is_refused() {
    for seed in 0..seeds(60) {
        let random = &mut Random(seed);
        let plan = streams::plan(seed, 60);
        let whole = after(plan.config, &plan.events).snapshot();
        for _ in 0..40 {
            let mut damaged = whole.clone();
            match random.below(3) {
                0 => damaged.truncate(random.index(whole.len())),
                1 => {
                    let at = random.index(whole.len());
                    damaged[at] ^= 1 << random.below(8);
                }
                _ => damaged.push(random.next() as u8),
            }
            let error = BlockIndex::from_snapshot(&damaged).expect_err("damaged bytes");
            assert_eq!(error.code(), "invalid_snapshot", "seed {seed}: {error}");
            // With checksums that fit, it may be a snapshot of something else; but nothing worse.
            if let Err(error) = BlockIndex::from_snapshot(&sealed(damaged)) {
                assert_eq!(error.code(), "invalid_snapshot", "seed {seed}: {error}");
            }
        }
    }
}

/// A section of a kind.
fn section(kind: u8, payload: &[u8]) -> Vec<u8> {
    [&[kind][..], &(payload.len() as u64).to_le_bytes(), payload, &[0; 8]].concat()
}

#[test]
fn other_bytes_are_refused() {
    let index = BlockIndex::new(Config::default()).expect("a block size");
    let whole = index.snapshot();
    let of = |sections: &[Vec<u8>]| sealed([&whole[..12], &sections.concat()].concat());
    let mut newer = whole.clone();
    newer[8] = 2;
    let mut no_tokens = whole.clone();
    no_tokens[21] = 0;
    let mut surplus = whole.clone();
    surplus.push(0);
    let head = section(6, &[16, 1, 0, 0, 0, 0, 0, 0]);
    for (bytes, what) in [
        (Vec::new(), "it is too short for a snapshot"),
        (b"KVASNAP\0".to_vec(), "it is too short for a snapshot"),
        (b"KVAPLAN\0 and more".to_vec(), "it does not begin as a snapshot does"),
        (newer, "it is of version 2, and this kvatlas reads version 1"),
        (whole[..whole.len() - 1].to_vec(), "section 1 (end, at byte 37): it is cut off"),
        (surplus, "1 bytes come after its end"),
        (sealed(no_tokens), "section 0 (index, at byte 12): block_size must be at least 1, got 0"),
        (of(&[section(5, &[0])]), "it has no head"),
        (
            of(&[head.clone(), section(5, &[2])]),
            "section 1 (end, at byte 37): 2 sections should come before it, and 1 do",
        ),
        (of(&[section(7, &[])]), "section 0 (rank, at byte 12): a section of kind 7 cannot be here"),
        (of(&[head.clone(), section(7, &[1, b'w', 0, 1, 0])]), "section 1 (rank, at byte 37): it ends too early"),
        (
            of(&[head, section(7, &[1, b'w', 0, 1, 0, 2])]),
            "section 1 (rank, at byte 37): it is of blocks that are not there",
        ),
        (
            of(&[section(1, b"{}")]),
            "section 0 (head, at byte 12): the snapshot is of a service, and only a service can go on from it",
        ),
    ] {
        let error = BlockIndex::from_snapshot(&bytes).expect_err("no snapshot");
        assert_eq!(error.to_string(), format!("not a snapshot of an index: {what}"));
    }
}

#[test]
fn what_several_ranks_hold_is_in_it_once() {
    let index = BlockIndex::new(Config::default()).expect("a block size");
    let names: Vec<_> = (1..=1000).map(BlockHash).collect();
    let contents: Vec<_> = (1..=1000).collect();
    let sizes: Vec<_> = ["a", "b", "c"]
        .map(|worker| {
            index.store(worker, 0, Tier::Gpu, None, &names, &contents).expect("lists of one length");
            index.snapshot().len()
        })
        .into();
    assert!(sizes[0] > 16_000 && sizes[2] < sizes[0] + 200, "{sizes:?}");
}

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
