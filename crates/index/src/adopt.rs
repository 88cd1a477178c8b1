//! Adoption of cached blocks that were announced before the service started: methods to find missed announcements, and
//! to store blocks known from other sources. `kvatlas-adopt` decides when to use them.

use crate::index::BlockIndex;
use crate::types::{BlockHash, Error};
use crate::writer::{Adoption, Chain, Roots};

impl BlockIndex {
    /// Finds missed announcements: for each block of `names`, the block nearest to the beginning of its prompt that the
    /// rank's device lacks in the chain ending with this block; None if the rank holds the whole chain.
    ///
    /// `removed`: block hashes that were removed since the last call with the same `roots`, a cache of results.
    #[must_use]
    pub fn missing_above(
        &self,
        worker: &str,
        rank: u32,
        removed: &[BlockHash],
        names: &[BlockHash],
        roots: &mut Roots,
    ) -> Vec<Option<BlockHash>> {
        self.write(|writer| writer.missing_above(worker, rank, removed, names, roots))
    }

    /// Stores the first blocks of a prompt on a rank's device without an announcement, with these block hashes and
    /// content hashes, except those marked as `gone`. Blocks that the rank holds already stay as they are; each new
    /// block counts as one copy. Blocks whose missing parent is among the new ones can be found from then on.
    ///
    /// `certain`: true if the contents are known to belong to the block hashes. A block that the rank holds with
    /// another content then gets this content, as the other one was a guess: engines announce a salt only at the
    /// beginning of a prompt. If false, the result for a block with another content is [`Adoption::Contrary`].
    ///
    /// # Errors
    ///
    /// The errors of [`store`](Self::store).
    pub fn adopt(
        &self,
        worker: &str,
        rank: u32,
        block_hashes: &[BlockHash],
        content_hashes: &[u64],
        gone: &[bool],
        certain: bool,
    ) -> Result<Adoption, Error> {
        let chain = Chain::new(None, block_hashes, content_hashes)?;
        self.write(|writer| writer.adopt(worker, rank, &chain, gone, certain))
    }

    /// Checks, for each block hash, if the rank holds the block on its device.
    #[must_use]
    pub fn held(&self, worker: &str, rank: u32, names: &[BlockHash]) -> Vec<bool> {
        self.write(|writer| writer.held(worker, rank, names))
    }

    /// Chain from the beginning of a prompt to the block `name`, as block hashes and content hashes. Only ranks that
    /// share a table of block hashes with others are searched. None if none of them holds the block.
    #[must_use]
    pub fn chain_of(&self, name: BlockHash) -> Option<(Vec<BlockHash>, Vec<u64>)> {
        self.write(|writer| writer.chain_of(name))
    }

    /// True if a rank uses the same block hashes as other ranks: at least `enough` blocks that it announced have the
    /// same block hash, parent and content at other ranks, and none differs.
    #[must_use]
    pub fn agrees(&self, worker: &str, rank: u32, enough: usize) -> bool {
        self.write(|writer| writer.agrees(worker, rank, enough))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use kvatlas_testing::{Random, seeds};

    use super::*;
    use crate::index::Config;
    use crate::reference::ReferenceIndex;
    use crate::types::{Tier, View};

    fn names(of: &[u64]) -> Vec<BlockHash> {
        of.iter().copied().map(BlockHash).collect()
    }

    fn index() -> BlockIndex {
        BlockIndex::new(Config { block_size: 1, count_copies: true }).expect("a block size")
    }

    fn depth(index: &BlockIndex, query: &[u64]) -> u32 {
        index.find(query).depth(View::Device)
    }

    fn store(index: &BlockIndex, worker: &str, parent: Option<u64>, blocks: &[u64]) {
        let contents: Vec<u64> = blocks.iter().map(|name| name * 10).collect();
        index.store(worker, 0, Tier::Gpu, parent.map(BlockHash), &names(blocks), &contents).expect("lists of a length");
    }

    #[test]
    fn what_waited_counts_and_holes_stay_holes() {
        let index = index();
        store(&index, "w", Some(3), &[4, 5]);
        let mut roots = Roots::default();
        assert_eq!(
            index.missing_above("w", 0, &[], &names(&[3, 5, 9]), &mut roots),
            [Some(BlockHash(3)), Some(BlockHash(3)), Some(BlockHash(9))]
        );
        let chain = (names(&[1, 2, 3]), [10, 20, 30]);
        let adopt = |gone: &[bool]| index.adopt("w", 0, &chain.0, &chain.1, gone, true).expect("lists of a length");
        assert_eq!(adopt(&[false, true, false]), Adoption::Blocks(2));
        assert_eq!(depth(&index, &[10, 20, 30, 40, 50]), 1);
        assert_eq!(index.missing_above("w", 0, &[], &names(&[5]), &mut roots), [Some(BlockHash(2))]);
        assert_eq!(adopt(&[]), Adoption::Blocks(1));
        assert_eq!(depth(&index, &[10, 20, 30, 40, 50]), 5);
        assert_eq!(index.missing_above("w", 0, &[], &names(&[5]), &mut roots), [None]);
        // One copy of each block, though the chain is adopted a second time.
        assert_eq!(adopt(&[]), Adoption::Blocks(0));
        index.remove("w", 0, Tier::Gpu, &names(&[3]));
        assert_eq!(depth(&index, &[10, 20, 30, 40, 50]), 2);
    }

    #[test]
    fn a_contrary_block_changes_nothing_unless_its_content_was_a_guess() {
        let index = index();
        store(&index, "w", None, &[1]);
        let adopt = |names: &[BlockHash], contents: &[u64], certain| {
            index.adopt("w", 0, names, contents, &[], certain).expect("lists of a length")
        };
        assert_eq!(adopt(&names(&[1, 2]), &[11, 20], false), Adoption::Contrary, "it contains something else");
        assert_eq!(adopt(&names(&[2, 1]), &[20, 10], true), Adoption::Contrary, "it continues something else");
        store(&index, "w", Some(2), &[3]);
        assert_eq!(adopt(&names(&[1, 2, 3]), &[10, 20, 31], false), Adoption::Contrary);
        assert_eq!(depth(&index, &[10, 20, 30]), 1);
        assert_eq!(adopt(&names(&[1, 2, 3]), &[10, 20, 31], true), Adoption::Blocks(2));
        assert_eq!((depth(&index, &[10, 20, 31]), depth(&index, &[10, 20, 30])), (3, 2));
        assert_eq!(index.adopt("nobody", 0, &names(&[1]), &[10], &[], true), Ok(Adoption::Contrary));
    }

    #[test]
    fn chains_of_others_and_who_may_use_them() {
        let index = index();
        let all: Vec<u64> = (1..=20).collect();
        store(&index, "a", None, &all);
        assert_eq!(index.chain_of(BlockHash(2)), Some((names(&[1, 2]), vec![10, 20])));
        assert_eq!(index.chain_of(BlockHash(21)), None);
        assert!(!index.agrees("a", 0, 1), "nobody else has shown anything");
        // Blocks that wait show it as those do that are linked.
        store(&index, "b", Some(10), &all[10..]);
        assert!(index.agrees("b", 0, 10) && !index.agrees("b", 0, 11));
        store(&index, "b", None, &all[..5]);
        assert!(index.agrees("b", 0, 15) && !index.agrees("b", 0, 16));
        store(&index, "c", Some(2), &[4]);
        assert!(!index.agrees("c", 0, 1), "another parent");
        index.store("d", 0, Tier::Gpu, None, &names(&[77]), &[10]).expect("lists of a length");
        assert!(!index.agrees("d", 0, 0), "another name");
    }

    /// Checks on random event streams that an adoption gives the same index as a store of the blocks that the rank
    /// lacked.
    #[test]
    fn equals_the_reference() {
        let mut adopted = 0;
        for seed in 0..seeds(300) {
            let random = &mut Random(seed);
            let (index, mut reference) = (index(), ReferenceIndex::new(true));
            let mut roots = Roots::default();
            for _ in 0..80 {
                // Block hashes that depend on the blocks before, as engines' do: a tree with two children each.
                let start = 1 + random.below(30);
                let chain: Vec<u64> = (0..1 + random.below(4))
                    .scan(start, |name, _| {
                        *name = *name * 2 + random.below(2);
                        Some(*name)
                    })
                    .collect();
                let worker = *random.pick(&["v", "w"]);
                match random.below(4) {
                    0 => {
                        index.remove(worker, 0, Tier::Gpu, &names(&chain));
                        reference.remove(worker, 0, Tier::Gpu, &names(&chain));
                        let _ = index.missing_above(worker, 0, &names(&chain), &[], &mut roots);
                    }
                    1 => {
                        let up: Vec<u64> =
                            std::iter::successors(chain.last().copied(), |name| (*name > 1).then_some(name / 2))
                                .collect();
                        let chain: Vec<u64> = up.into_iter().rev().collect();
                        let contents: Vec<u64> = chain.iter().map(|name| name * 10).collect();
                        let gone: Vec<bool> = chain.iter().map(|_| random.chance(20)).collect();
                        let held: Vec<BlockHash> = index
                            .dump_rank(worker, 0)
                            .into_iter()
                            .flat_map(|event| match event {
                                crate::Event::Store { block_hashes, .. } => block_hashes,
                                _ => Vec::new(),
                            })
                            .collect();
                        let result = index.adopt(worker, 0, &names(&chain), &contents, &gone, random.chance(50));
                        let Ok(Adoption::Blocks(blocks)) = result else {
                            assert!(index.ranks_of(worker).is_empty(), "seed {seed}: {result:?}");
                            continue;
                        };
                        adopted += blocks;
                        for (i, name) in chain.iter().copied().enumerate() {
                            let parent = (i > 0).then(|| BlockHash(chain[i - 1]));
                            if !gone[i] && !held.contains(&BlockHash(name)) {
                                reference
                                    .store(worker, 0, Tier::Gpu, parent, &[BlockHash(name)], &[name * 10])
                                    .expect("one of each");
                            }
                        }
                    }
                    _ => {
                        let parent = chain[0] / 2;
                        store(&index, worker, Some(parent), &chain);
                        let contents: Vec<u64> = chain.iter().map(|name| name * 10).collect();
                        reference
                            .store(worker, 0, Tier::Gpu, Some(BlockHash(parent)), &names(&chain), &contents)
                            .expect("lists of a length");
                    }
                }
                // The index lacks exactly the blocks that the reference does not reach.
                let name = 1 + random.below(255);
                let up: Vec<u64> = std::iter::successors(Some(name), |name| (*name > 1).then_some(name / 2)).collect();
                let query: Vec<u64> = up.iter().rev().map(|name| name * 10).collect();
                let expected = reference.find(&query).by_rank(View::Device);
                let found = index.find(&query);
                let mut found: Vec<_> =
                    found.by_rank(View::Device).into_iter().map(|(who, n, depth)| (who.clone(), n, depth)).collect();
                found.sort();
                let mut sorted = expected.clone();
                sorted.sort();
                assert_eq!(found, sorted, "seed {seed}");
                let expected = expected.iter().find(|(who, ..)| **who == *worker).map_or(0, |(.., depth)| *depth);
                let missing = index.missing_above(worker, 0, &[], &names(&[name]), &mut roots)[0];
                if expected as usize == query.len() {
                    assert_eq!(missing, None, "seed {seed}");
                } else {
                    let first = missing.expect("not all of them are held");
                    assert!(up.contains(&first.0), "seed {seed}");
                }
            }
        }
        assert!(adopted > 400, "only {adopted} blocks were adopted");
    }
}
