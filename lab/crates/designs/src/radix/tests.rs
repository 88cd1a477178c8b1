//! Tests of the radix tree against the reference, and of its deviations by their smallest examples.

use super::RadixTree;
use super::testing::{Habits, answer, check, expected, names, tell};
use crate::interface::{Change, LocalDesign, Refusal};
use kvatlas_index::BlockHash;
use kvatlas_index::reference::ReferenceIndex;

#[test]
fn equals_the_reference_with_holes_duplicates_clears_and_drops() {
    check(RadixTree::new, Habits::default(), false, true);
}

#[test]
fn refuses_orphans_and_nothing_else() {
    check(RadixTree::new, Habits { orphans: 50, chaos: 0 }, true, true);
}

#[test]
fn holds_what_the_reference_holds_whatever_names_do() {
    check(RadixTree::new, Habits { orphans: 30, chaos: 20 }, true, false);
    check(RadixTree::new, Habits { orphans: 50, chaos: 100 }, true, false);
}

fn store(worker: u32, parent: Option<u64>, blocks: &[(u64, u64)]) -> Change {
    Change::Store {
        worker,
        parent: parent.map(BlockHash),
        block_hashes: blocks.iter().map(|&(name, _)| BlockHash(name)).collect(),
        content_hashes: blocks.iter().map(|&(_, content)| content).collect(),
    }
}

fn remove(worker: u32, names: &[u64]) -> Change {
    Change::Remove { worker, block_hashes: names.iter().copied().map(BlockHash).collect() }
}

/// The depth of worker 0 in the tree, and in the reference.
fn depths(changes: &[Change], query: &[u64]) -> (u32, u32) {
    let (mut tree, mut reference) = (RadixTree::new(), ReferenceIndex::new(false));
    for change in changes {
        let _ = tree.apply(change);
        tell(&mut reference, change);
    }
    let of = |scores: Vec<(u32, u32)>| scores.iter().find(|(worker, _)| *worker == 0).map_or(0, |&(_, depth)| depth);
    (of(answer(&tree, query)), of(expected(&reference, query)))
}

#[test]
fn a_hole_ends_the_match_until_it_is_filled() {
    let chain: Vec<(u64, u64)> = (1..=10).map(|i| (i, i * 10)).collect();
    let query: Vec<u64> = chain.iter().map(|&(_, content)| content).collect();
    let mut changes = vec![store(0, None, &chain), store(1, None, &chain[..5]), remove(0, &[5])];
    assert_eq!(depths(&changes, &query), (4, 4));
    changes.push(store(0, Some(4), &chain[4..5]));
    assert_eq!(depths(&changes, &query), (10, 10));
}

#[test]
fn deviation_an_orphan_is_refused() {
    let mut tree = RadixTree::new();
    let orphan = tree.apply(&store(0, Some(1), &[(2, 20)]));
    assert_eq!(orphan, Err(Refusal::UnknownParent { worker: 0, parent: BlockHash(1) }));
    assert_eq!((tree.stats().refused, tree.stats().workers, tree.stats().entries), (1, 0, 0));
    let changes = [store(0, Some(1), &[(2, 20)]), store(0, None, &[(1, 10)])];
    assert_eq!(depths(&changes, &[10, 20]), (1, 2));
    // Another worker's block of that name is not a parent.
    let changes = [store(1, None, &[(1, 10)]), store(0, Some(1), &[(2, 20)])];
    assert_eq!(depths(&changes, &[10, 20]), (0, 0));
}

#[test]
fn deviation_two_names_of_one_worker_for_one_position() {
    let mut changes =
        vec![store(0, None, &[(1, 10)]), store(0, None, &[(2, 10)]), store(0, Some(1), &[(3, 20)]), remove(0, &[1])];
    assert_eq!(depths(&changes, &[10, 20]), (2, 1));
    changes.push(remove(0, &[2]));
    assert_eq!(depths(&changes, &[10, 20]), (0, 0));
}

#[test]
fn deviation_a_name_announced_elsewhere_moves_alone() {
    let changes = [store(0, None, &[(1, 10), (2, 20)]), store(0, None, &[(1, 11)])];
    assert_eq!(depths(&changes, &[11, 20]), (1, 2));
    assert_eq!(depths(&changes, &[10, 20]), (0, 0));
}

#[test]
fn a_name_may_be_its_own_parent() {
    let changes = [store(0, None, &[(1, 10), (1, 20), (1, 30)])];
    assert_eq!(depths(&changes, &[10, 20, 30]), (0, 0));
}

#[test]
fn refuses_lists_of_different_lengths() {
    let mut tree = RadixTree::new();
    let refused = tree.store(0, None, &[BlockHash(1)], &[]);
    assert_eq!(refused, Err(Refusal::LengthMismatch { block_hashes: 1, content_hashes: 0 }));
    assert_eq!((tree.stats().refused, tree.stats().workers), (1, 0));
}

#[test]
fn a_million_blocks_deep() {
    let contents: Vec<u64> = (1..=1_000_000).collect();
    let all = names(0, &contents);
    let mut tree = RadixTree::new();
    tree.store(0, None, &all, &contents).unwrap();
    tree.store(1, None, &all, &contents).unwrap();
    assert_eq!(answer(&tree, &contents), [(0, 1_000_000), (1, 1_000_000)]);
    tree.clear(0);
    assert_eq!(answer(&tree, &contents), [(1, 1_000_000)]);
    // From the head on: nodes stay until the last one is removed, and then all are freed at once.
    tree.remove(1, &all);
    assert_eq!((tree.stats().entries, tree.stats().workers), (0, 2));
    tree.store(0, None, &all, &contents).unwrap();
    drop(tree);
}
