//! Tests of many threads at once: no insert is lost, no call hangs, and in the end every count equals a recount.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use kvatlas_trees::EvictionPolicy;
use kvatlas_trees::string_tree::StringTree;
use kvatlas_trees::token_tree::TokenTree;

use kvatlas_testing::Random;

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

/// Evicts one tenant while each thread inserts for a tenant of its own and removes nothing: in the end all of it
/// remains.
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
