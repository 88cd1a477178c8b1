//! Snapshots: an index comes back as it was, and damaged bytes are refused, never more than that.

mod streams;

use std::collections::BTreeMap;

use kvatlas_index::{BlockHash, BlockIndex, Config, Event, Stats, Tier};
use kvatlas_testing::{Random, seeds};
use xxhash_rust::xxh3::xxh3_64;

fn after(config: Config, events: &[Event]) -> BlockIndex {
    let index = BlockIndex::new(config).expect("a block size");
    events.iter().for_each(|event| index.apply(event).expect("an index that is not full"));
    index
}

/// Who holds what, as often as it is held: a dump without its order.
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

/// Bytes with a checksum that fits them.
fn sealed(mut body: Vec<u8>) -> Vec<u8> {
    let sum = xxh3_64(&body);
    body.extend(sum.to_le_bytes());
    body
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
            // With a checksum that fits, it may be a snapshot of something else; but nothing worse.
            damaged.truncate(damaged.len().saturating_sub(8));
            if let Err(error) = BlockIndex::from_snapshot(&sealed(damaged)) {
                assert_eq!(error.code(), "invalid_snapshot", "seed {seed}: {error}");
            }
        }
    }
}

#[test]
fn other_bytes_are_refused() {
    let index = BlockIndex::new(Config::default()).expect("a block size");
    let whole = index.snapshot();
    let mut newer = whole.clone();
    newer[8] = 2;
    let mut no_tokens = whole[..whole.len() - 8].to_vec();
    no_tokens[12] = 0;
    for (bytes, what) in [
        (Vec::new(), "too short"),
        (b"KVAINDEX".to_vec(), "too short"),
        (b"KVAPLAN\0 and more".to_vec(), "it does not begin as one"),
        (newer, "it is of version 2, and this reads version 1"),
        (whole[..whole.len() - 1].to_vec(), "it was cut off or altered: its checksum does not match"),
        (sealed(no_tokens), "block_size must be at least 1, got 0"),
    ] {
        let error = BlockIndex::from_snapshot(&bytes).expect_err("no snapshot");
        assert_eq!(error.to_string(), format!("not a snapshot of an index: {what}"));
    }
}
