//! Tests of `StringTree` and `TokenTree` against a plain model: random operations, many threads, and invalid snapshots.
//!
//! Tests of snapshots and of many threads at once are in this file: equal trees give equal bytes, and invalid bytes are
//! refused or give a consistent tree; no insert is lost, no call hangs, and in the end every count equals a recount.

mod histories;
mod model;
mod rules;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use kvatlas_testing::Random;
use kvatlas_trees::EvictionPolicy;
use kvatlas_trees::string_tree::StringTree;
use kvatlas_trees::token_tree::TokenTree;
use xxhash_rust::xxh3::xxh3_64;

fn filled() -> StringTree {
    let tree = StringTree::new();
    let mut rng = Random(11);
    for i in 0..60 {
        let text: String = (0..rng.index(12)).map(|_| ["ab", "é", "静か", "xyz "][rng.index(4)]).collect();
        tree.insert_text_with_priority(&text, &format!("w{}", i % 5), i - 30);
        let _ = tree.prefix_match(&text);
    }
    tree
}

#[test]
fn order_of_history_does_not_show() {
    let tree = filled();
    let bytes = tree.snapshot();
    assert_eq!(tree.snapshot(), bytes);
    let again = StringTree::from_snapshot(&bytes).unwrap();
    assert_eq!(again.snapshot(), bytes);
    assert_eq!(again.tenant_sizes(), tree.tenant_sizes());
    assert_eq!(again.recount(), tree.recount());
    assert_eq!(again.iter_entries().collect::<Vec<_>>(), tree.iter_entries().collect::<Vec<_>>());
    let empty = StringTree::new().snapshot();
    assert_eq!(StringTree::from_snapshot(&empty).unwrap().node_count(), 0);
}

#[test]
fn shared_prefixes_are_written_once() {
    let tree = StringTree::new();
    let prefix = "all of them begin with this. ".repeat(300);
    (0..100).for_each(|i| tree.insert_text(&format!("{prefix}{i}"), "w0"));
    assert!(tree.snapshot().len() < prefix.len() + 100 * 20);
}

#[test]
fn every_flipped_bit_and_every_cut_is_refused() {
    let bytes = filled().snapshot();
    for at in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 1 << (at % 8);
        let refused = StringTree::from_snapshot(&bad).unwrap_err();
        assert_eq!(refused.code(), "invalid_snapshot");
        assert!(StringTree::from_snapshot(&bytes[..at]).is_err());
    }
    assert!(StringTree::from_snapshot(&[&bytes[..], b"x"].concat()).is_err());
    assert!(TokenTree::from_snapshot(&bytes).is_err());
}

/// Checks altered snapshots with a corrected checksum: each is refused or gives a consistent tree.
#[test]
fn what_gets_past_the_checksum_is_refused_or_sound() {
    let text = filled().snapshot();
    let tokens = {
        let tree = TokenTree::new();
        (0..40u32).for_each(|i| tree.insert_tokens(&[i % 3; 48][..16 + 16 * (i as usize % 3)], &format!("w{}", i % 4)));
        tree.snapshot()
    };
    let mut rng = Random(5);
    let (mut read, mut refused) = (0, 0);
    for round in 0..30_000 {
        let source = if round % 2 == 0 { &text } else { &tokens };
        let mut bad = source[..source.len() - 8].to_vec();
        for _ in 0..1 + rng.index(3) {
            let at = 8 + rng.index(bad.len() - 8);
            match rng.index(4) {
                0 => bad[at] ^= 1 << rng.index(8),
                1 => bad[at] = [0, 1, 0x7f, 0x80, 0xff][rng.index(5)],
                2 => bad.insert(at, rng.index(256) as u8),
                _ => {
                    bad.remove(at);
                }
            }
        }
        let sum = xxh3_64(&bad);
        bad.extend(sum.to_le_bytes());
        let sound = if round % 2 == 0 {
            StringTree::from_snapshot(&bad).map(|tree| {
                assert_eq!(tree.recount(), tree.tenant_sizes());
                tree.iter_entries().for_each(|e| drop(tree.match_prefix_with_counts(&e.path)));
                tree.evict_to_size(tree.total_size() / 2);
                tree.evict_to_size(0);
                assert_eq!((tree.node_count(), tree.tenant_count()), (0, 0));
            })
        } else {
            TokenTree::from_snapshot(&bad).map(|tree| {
                assert_eq!(tree.recount(), tree.tenant_sizes());
                tree.evict_to_size(0);
                assert_eq!((tree.node_count(), tree.tenant_count()), (0, 0));
            })
        };
        match sound {
            Ok(()) => read += 1,
            Err(e) => {
                assert_eq!(e.code(), "invalid_snapshot");
                refused += 1;
            }
        }
    }
    assert!(read > 100 && refused > 10_000, "{read} read, {refused} refused");
}

const THREADS: usize = 8;

fn text(rng: &mut Random) -> String {
    (0..1 + rng.index(8)).map(|_| ["aaaa", "aa", "b", "静か", "é", "the end "][rng.index(6)]).collect()
}

#[test]
fn everything_at_once() {
    for policy in [EvictionPolicy::Lru, EvictionPolicy::Mru, EvictionPolicy::Lfu] {
        let tree = StringTree::with_policy(policy);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let tree = &tree;
                scope.spawn(move || {
                    let mut rng = Random(thread as u64);
                    for _ in 0..3_000 {
                        let (key, tenant) = (text(&mut rng), format!("w{}", rng.index(4)));
                        match rng.index(12) {
                            0..=3 => tree.insert_text(&key, &tenant),
                            4..=5 => {
                                let found = tree.match_prefix_with_counts(&key);
                                assert!(found.matched <= found.input && found.tenant.is_some() == (found.matched > 0));
                            }
                            6..=7 => {
                                tree.match_and_insert_with(&key, |found| found.tenant.clone().or(Some("w0".into())));
                            }
                            8 => {
                                let depths = tree.match_all(&key);
                                assert!(depths.is_sorted_by(|a, b| a.1 >= b.1));
                            }
                            9 => drop(tree.evict_tenant(&tenant, rng.index(200))),
                            10 => drop(tree.evict_to_size(rng.index(1000))),
                            _ => match rng.index(8) {
                                0 => drop(tree.remove_tenant(&tenant)),
                                1 => drop(tree.iter_entries().count()),
                                2 => drop(StringTree::from_snapshot(&tree.snapshot()).unwrap()),
                                3 => tree.clear(),
                                _ => assert!(tree.prefix_match_tenant(&key, &tenant) <= key.chars().count()),
                            },
                        }
                    }
                });
            }
        });
        assert_eq!(tree.recount(), tree.tenant_sizes());
        assert_eq!(tree.total_size(), tree.recount().iter().map(|(_, n)| n).sum::<usize>());
        tree.evict_to_size(0);
        assert_eq!((tree.node_count(), tree.tenant_count()), (0, 0));
    }
}

/// Evicts one tenant while each thread inserts for another tenant and removes nothing: in the end all inserted prompts
/// remain.
#[test]
fn no_insert_is_lost_while_another_tenant_is_evicted() {
    let tree = TokenTree::with_config(1, EvictionPolicy::Lru).unwrap();
    let (stop, evicted) = (AtomicBool::new(false), AtomicUsize::new(0));
    let keys: Vec<Vec<u32>> = {
        let mut rng = Random(3);
        (0..400).map(|_| (0..1 + rng.index(40)).map(|_| 70_000 + rng.index(2) as u32).collect()).collect()
    };
    std::thread::scope(|scope| {
        let (tree, keys, stop, evicted) = (&tree, &keys, &stop, &evicted);
        let writers: Vec<_> = (0..THREADS - 2)
            .map(|thread| {
                scope.spawn(move || {
                    let name = format!("w{thread}");
                    for _ in 0..3 {
                        for key in keys {
                            if thread % 2 == 0 {
                                tree.insert_tokens(key, &name);
                            } else {
                                tree.match_and_insert(key, &name);
                            }
                            assert_eq!(tree.prefix_match_tenant(key, &name), key.len());
                        }
                    }
                })
            })
            .collect();
        scope.spawn(move || {
            while !stop.load(Relaxed) {
                keys.iter().for_each(|key| tree.insert_tokens(key, "victim"));
            }
        });
        scope.spawn(move || {
            while !stop.load(Relaxed) {
                evicted.fetch_add(tree.evict_tenant("victim", 20), Relaxed);
            }
        });
        writers.into_iter().for_each(|w| w.join().unwrap());
        // The evictions must have taken effect.
        while evicted.load(Relaxed) == 0 {
            std::thread::yield_now();
        }
        stop.store(true, Relaxed);
    });
    tree.remove_tenant("victim");
    assert_eq!(tree.recount(), tree.tenant_sizes());
    assert!(tree.tenant_sizes().windows(2).all(|two| two[0].1 == two[1].1));
    let whole: std::collections::BTreeSet<&[u32]> = keys.iter().flat_map(|k| (1..=k.len()).map(|n| &k[..n])).collect();
    assert_eq!(tree.tenant_size("w0"), whole.len());
}
