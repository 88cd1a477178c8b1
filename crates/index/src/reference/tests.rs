//! Answers that the reference must give in cases small enough to be checked by hand.

use super::*;

fn names(names: &[u64]) -> Vec<BlockHash> {
    names.iter().copied().map(BlockHash).collect()
}

fn store(index: &mut ReferenceIndex, tier: Tier, parent: Option<u64>, blocks: &[(u64, u64)]) {
    let (names, contents): (Vec<_>, Vec<_>) = blocks.iter().map(|&(n, c)| (BlockHash(n), c)).unzip();
    index.store("w", 0, tier, parent.map(BlockHash), &names, &contents).unwrap();
}

fn depths(index: &ReferenceIndex, query: &[u64]) -> (u32, u32) {
    let found = index.find(query);
    (found.depth(View::Device), found.depth(View::AnyTier))
}

#[test]
fn holes_and_orphans() {
    let mut index = ReferenceIndex::new(true);
    store(&mut index, Tier::Gpu, Some(2), &[(3, 30)]);
    assert_eq!(depths(&index, &[10, 20, 30]), (0, 0));
    store(&mut index, Tier::Gpu, None, &[(1, 10), (2, 20)]);
    assert_eq!(depths(&index, &[10, 20, 30, 40]), (3, 3));
    index.remove("w", 0, Tier::Gpu, &names(&[2]));
    assert_eq!(depths(&index, &[10, 20, 30]), (1, 1));
    store(&mut index, Tier::Gpu, Some(1), &[(2, 20)]);
    assert_eq!(depths(&index, &[10, 20, 30]), (3, 3));
}

#[test]
fn copies_count_or_not() {
    for (count_copies, left) in [(true, 1), (false, 0)] {
        let mut index = ReferenceIndex::new(count_copies);
        store(&mut index, Tier::Gpu, None, &[(1, 10)]);
        store(&mut index, Tier::Gpu, None, &[(1, 10)]);
        index.remove("w", 0, Tier::Gpu, &names(&[1]));
        assert_eq!(depths(&index, &[10]).0, left);
    }
}

#[test]
fn tiers_join_chains_in_the_any_view_only() {
    let mut index = ReferenceIndex::new(true);
    store(&mut index, Tier::Gpu, None, &[(1, 10)]);
    store(&mut index, Tier::Cpu, Some(1), &[(2, 20)]);
    store(&mut index, Tier::Gpu, Some(2), &[(3, 30)]);
    assert_eq!(depths(&index, &[10, 20, 30]), (1, 3));
    index.remove("w", 0, Tier::Disk, &names(&[2]));
    assert_eq!(index.unknown_removals, 1);
    index.clear("w", None, Some(Tier::Cpu));
    assert_eq!(depths(&index, &[10, 20, 30]), (1, 1));
}

#[test]
fn the_device_says_what_a_name_means() {
    let mut index = ReferenceIndex::new(true);
    store(&mut index, Tier::Cpu, None, &[(1, 10)]);
    assert_eq!((depths(&index, &[10]), depths(&index, &[11])), ((0, 1), (0, 0)));
    store(&mut index, Tier::Gpu, None, &[(1, 11)]);
    assert_eq!((depths(&index, &[10]), depths(&index, &[11])), ((0, 0), (1, 1)));
    store(&mut index, Tier::Disk, None, &[(1, 10)]);
    assert_eq!((depths(&index, &[10]), depths(&index, &[11])), ((0, 0), (1, 1)));
    assert_eq!(index.replaced, 1);
    // What it said holds for as long as any tier has the block.
    index.remove("w", 0, Tier::Gpu, &names(&[1]));
    index.remove("w", 0, Tier::Cpu, &names(&[1]));
    store(&mut index, Tier::Cpu, None, &[(1, 10)]);
    assert_eq!((depths(&index, &[10]), depths(&index, &[11])), ((0, 0), (0, 1)));
    index.clear("w", None, None);
    store(&mut index, Tier::Cpu, None, &[(1, 10)]);
    assert_eq!((depths(&index, &[10]), depths(&index, &[11])), ((0, 1), (0, 0)));
}

#[test]
fn a_dump_restores() {
    let mut index = ReferenceIndex::new(true);
    store(&mut index, Tier::Gpu, None, &[(1, 10), (2, 20), (2, 20)]);
    store(&mut index, Tier::Gpu, None, &[(1, 10)]);
    store(&mut index, Tier::Cpu, None, &[(3, 21)]);
    store(&mut index, Tier::Disk, None, &[(2, 21), (3, 21)]);
    let mut copy = ReferenceIndex::new(true);
    for event in index.dump() {
        copy.apply(&event).unwrap();
    }
    assert_eq!(copy.workers, index.workers);
}

#[test]
fn a_match_in_all_its_forms() {
    let mut index = ReferenceIndex::new(true);
    for (worker, rank, depth) in [("a", 0, 1), ("b", 0, 1), ("b", 7, 3), ("c", 0, 1)] {
        index.store(worker, rank, Tier::Gpu, None, &names(&[1, 2, 3][..depth]), &[10, 20, 30][..depth]).unwrap();
    }
    let found = index.find(&[10, 20, 30, 40]);
    let level = |depth, workers: &[&str]| (depth, workers.iter().map(|&w| Arc::from(w)).collect::<Vec<_>>());
    assert_eq!(found.levels(View::Device), [level(3, &["b"]), level(1, &["a", "c"])]);
    assert_eq!(found.by_rank(View::Device).len(), 4);
    assert_eq!(found.best(View::Device, 1, Some(&["c", "a"])), [(Arc::from("a"), 1)]);
    assert_eq!(found.best(View::AnyTier, 9, None).len(), 3);
    index.drop_worker("b");
    assert_eq!(index.find(&[10, 20]).levels(View::AnyTier), [level(1, &["a", "c"])]);
}
