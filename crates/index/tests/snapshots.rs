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
