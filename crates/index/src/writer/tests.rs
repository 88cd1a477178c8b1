//! What is counted as things change, against what it is when counted anew; and that nobody who asks for sizes walks.

use std::collections::HashSet;

use kvatlas_testing::{Random, seeds};

use super::holder::Holder;
use super::state::Writer;
use crate::fingerprint::word;
use crate::index::{BlockIndex, Config};
use crate::steps::steps_of;
use crate::types::{BlockHash, Event, Tier};

impl Writer {
    fn is_counted(&self) -> bool {
        let holder = |it: &Holder| {
            it.irregular.as_ref().is_none_or(|irregular| irregular.is_counted())
                && it.private.as_ref().is_none_or(|private| private.is_counted(&self.runs))
        };
        self.holders.iter().all(holder)
            && self.workers.ranks().all(|(_, _, books)| books.copies.is_counted())
            && self.runs.is_counted()
            && self.trash.is_counted()
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
        for _ in 0..300 {
            let worker = format!("w{}", random.below(3));
            let tier = if random.chance(20) { *random.pick(&Tier::ALL) } else { Tier::Gpu };
            let names: Vec<_> = (0..random.below(6)).map(|_| BlockHash(random.below(24))).collect();
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
            let stats = index.stats();
            (unlinked, copies) = (unlinked + stats.unlinked, copies + stats.copies);
            private += stats.private_holders;
        }
    }
    assert!(unlinked > 100 && copies > 100 && private > 100, "{unlinked} {copies} {private}");
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
        let (stats, held) = steps_of(|| index.stats());
        assert!(held.unlinked > 0 && held.copies > 0, "{held:?}");
        (stats, steps_of(|| index.ranks()).0, steps_of(|| index.workers()).0, steps_of(|| index.ranks_of("w1")).0)
    };
    let (few, many) = (steps(&filled(60)), steps(&filled(3_000)));
    assert_eq!(few, many);
    assert!(few.0 > 0 && few.0 < 100, "{few:?}");
}
