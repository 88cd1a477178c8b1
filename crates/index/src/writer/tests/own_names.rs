//! Ranks that call blocks by names of their own, and how these come together.

use super::{depth, remove, store};
use crate::index::{BlockIndex, Config};
use crate::stats::steps_of;
use crate::types::{BlockHash, Tier, View};

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

/// A worker that stores a long chain that is there, under no shared names, names it at once: not by
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
