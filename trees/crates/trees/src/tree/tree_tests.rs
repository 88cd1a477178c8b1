//! Tests of histories after which all bookkeeping is checked, and of interleavings of two threads, made by hand.

use super::descend::START;
use super::shared::SharedTree;
use super::{EvictionPolicy, Text, Tokens, Units};

fn numbers(mut state: u64) -> impl FnMut(usize) -> usize {
    move |n| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    }
}

fn history<U: Units>(units: U, policy: EvictionPolicy, seed: u64, words: &[&[U::Item]]) {
    let tree = SharedTree::new(units, policy);
    let mut next = numbers(seed);
    for step in 0..400 {
        let key: Vec<U::Item> = (0..1 + next(7)).flat_map(|_| words[next(words.len())]).copied().collect();
        let tenant = format!("w{}", next(4));
        match next(12) {
            0..=4 => tree.insert(&key, &tenant, next(3) as i32),
            5..=7 => drop(tree.match_prefix(&key)),
            8 => drop(tree.match_tenant(&key, &tenant)),
            9 => drop(tree.evict_tenant(&tenant, next(300))),
            10 => drop(tree.evict_to_size(tree.total() * 4 / 5)),
            _ => drop(tree.evict_to_bytes(tree.bytes() * 4 / 5)),
        }
        if step % 10 == 0 {
            tree.with(|core| core.check());
        }
    }
    tree.evict_to_size(0);
    tree.with(|core| core.check());
}

#[test]
fn what_is_kept_is_what_the_nodes_say() {
    let long = "and so on and on, naïve ".repeat(9);
    let words = ["a", "b", "静か", "the end", &long].map(str::as_bytes);
    let pages: Vec<Vec<u32>> = (0..4).map(|i| vec![i * 40_000; 8 * (1 + i as usize * i as usize)]).collect();
    let pages: Vec<&[u32]> = pages.iter().map(Vec::as_slice).collect();
    for policy in EvictionPolicy::ALL {
        for seed in 0..3 {
            history(Text::new(), policy, seed, &words);
            history(Tokens::of(8), policy, seed, &pages);
        }
    }
}

#[test]
fn orders_of_eviction_do_not_grow_with_accesses() {
    for policy in EvictionPolicy::ALL {
        let tree = SharedTree::new(Tokens::of(1), policy);
        for i in 0..20_000 {
            tree.insert(&[i % 10, i % 7], "w0", 0);
            let _ = tree.match_prefix(&[i % 10, i % 7]);
        }
        tree.with(|core| assert!(core.queued < 400, "{} entries of {} nodes", core.queued, core.len()));
    }
}

/// Another insert of the same text came between descent and splice: the part it left out begins within the run.
#[test]
fn a_run_may_be_used_from_its_middle() {
    let text = "one two three, naïve four ".repeat(20);
    for skipped in [5, 99, 300] {
        let tree = SharedTree::new(Text::new(), EvictionPolicy::Lru);
        let pieces = tree.store(text.as_bytes());
        tree.insert(&text.as_bytes()[..skipped], "w0", 0);
        let mut core = tree.core.write();
        tree.splice(&mut core, START, &pieces, text.as_bytes(), "w1", 0);
        core.check();
        drop(core);
        let part = (skipped + 40..).find(|&end| text.is_char_boundary(end)).unwrap();
        for end in [text.len(), part] {
            tree.insert(&text.as_bytes()[..end], "w1", 0);
        }
        let whole = tree.units.count(&text.as_bytes()[..part]);
        assert_eq!(tree.match_tenant(text.as_bytes(), "w1"), tree.units.count(text.as_bytes()));
        tree.evict_tenant("w1", whole);
        tree.with(|core| core.check());
        assert_eq!(tree.match_tenant(text.as_bytes(), "w1"), whole);
    }
}
