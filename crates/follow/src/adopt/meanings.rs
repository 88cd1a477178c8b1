//! Contents and parents of the block hashes in a snapshot, kept for a while if the snapshot's blocks could not be
//! proved to be still held.
//!
//! The engine may have evicted blocks since the snapshot. But an engine that computes block hashes from the blocks'
//! contents always gives the same block the same hash. So when such an engine proves that it holds a block hash, the
//! snapshot shows the contents of the block and of all blocks before it in its chain.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use hashbrown::hash_map::Entry as At;
use kvatlas_index::BlockHash;
use kvatlas_index::snapshot::Dictionary;

/// Maximum number of block hashes kept per snapshot. This many occupy 64 MB, plus up to 150 MB for their hash table.
const MOST_NAMES: usize = 1 << 22;
/// Time for which a snapshot's block hashes are kept. After this time, each chain in use has had a new block stored
/// that proves the chain to be held.
const KEPT: Duration = Duration::from_secs(600);
/// Value, instead of a position in the snapshot's list of blocks, for a block hash that stands for several different
/// blocks.
const SEVERAL: u32 = u32::MAX;

/// Table of the block hashes of one keyspace (model and routing group) in a snapshot, with the contents and the parent
/// of each block.
#[derive(Debug)]
pub(crate) struct Meanings {
    dictionary: Arc<Dictionary>,
    places: HashMap<BlockHash, u32>,
    until: Instant,
}

impl Meanings {
    /// Creates the table of the block hashes in a snapshot's dictionary (its list of blocks with their contents and
    /// parents); `None` if the dictionary has more than [`MOST_NAMES`] block hashes.
    pub(crate) fn new(dictionary: Arc<Dictionary>) -> Option<Self> {
        if dictionary.names.len() > MOST_NAMES {
            return None;
        }
        let mut places = HashMap::with_capacity(dictionary.names.len());
        for (place, name) in (0_u32..).zip(&dictionary.names) {
            match places.entry(*name) {
                At::Vacant(vacant) => _ = vacant.insert(place),
                At::Occupied(mut at) => {
                    let is_same = *at.get() != SEVERAL
                        && dictionary.contents[*at.get() as usize] == dictionary.contents[place as usize]
                        && parent_of(&dictionary, *at.get()) == parent_of(&dictionary, place);
                    if !is_same {
                        at.insert(SEVERAL);
                    }
                }
            }
        }
        Some(Self { dictionary, places, until: Instant::now() + KEPT })
    }

    /// True if this table of block hashes was made from this very instance of a snapshot's dictionary of blocks, not
    /// only from an equal one.
    pub(crate) fn is_of(&self, dictionary: &Arc<Dictionary>) -> bool {
        Arc::ptr_eq(&self.dictionary, dictionary)
    }

    pub(crate) fn is_old(&self, now: Instant) -> bool {
        now > self.until
    }

    /// Returns the chain of blocks from the beginning of a prompt up to the block with the hash `name`: the block
    /// hashes and the content hashes. `None` if any block of the chain is unknown.
    pub(crate) fn chain_of(&self, name: BlockHash) -> Option<(Vec<BlockHash>, Vec<u64>)> {
        let (mut names, mut contents) = (Vec::new(), Vec::new());
        let mut next = Some(name);
        while let Some(name) = next {
            let place = *self.places.get(&name).filter(|place| **place != SEVERAL)?;
            names.push(name);
            contents.push(self.dictionary.contents[place as usize]);
            // Names in a circle are no digests of contents.
            if names.len() > self.places.len() {
                return None;
            }
            next = parent_of(&self.dictionary, place);
        }
        names.reverse();
        contents.reverse();
        Some((names, contents))
    }
}

fn parent_of(dictionary: &Dictionary, place: u32) -> Option<BlockHash> {
    let place = place as usize;
    let chain = dictionary.chains.partition_point(|chain| chain.start <= place).checked_sub(1)?;
    let chain = &dictionary.chains[chain];
    if place == chain.start { chain.parent } else { Some(dictionary.names[place - 1]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvatlas_index::snapshot::Entry;

    fn names(of: &[u64]) -> Vec<BlockHash> {
        of.iter().copied().map(BlockHash).collect()
    }

    /// Makes a table of chains, each given by its parent block and its block hashes. A block's content hash is ten
    /// times its block hash, unless `others` gives another.
    fn meanings(chains: &[(Option<u64>, &[u64])], others: &[(usize, u64)]) -> Meanings {
        let mut dictionary = Dictionary::default();
        for (parent, of) in chains {
            let (start, parent) = (dictionary.names.len(), parent.map(BlockHash));
            dictionary.chains.push(Entry { start, blocks: of.len(), parent });
            dictionary.names.extend(names(of));
            dictionary.contents.extend(of.iter().map(|name| name * 10));
        }
        others.iter().for_each(|(place, content)| dictionary.contents[*place] = *content);
        Meanings::new(Arc::new(dictionary)).expect("few")
    }

    #[test]
    fn a_chain_is_whole_or_not_told() {
        let all = meanings(&[(None, &[1, 2, 3]), (Some(2), &[4, 5]), (Some(9), &[6]), (None, &[7])], &[]);
        assert_eq!(all.chain_of(BlockHash(5)), Some((names(&[1, 2, 4, 5]), vec![10, 20, 40, 50])));
        assert_eq!(all.chain_of(BlockHash(1)), Some((names(&[1]), vec![10])));
        assert_eq!(all.chain_of(BlockHash(7)), Some((names(&[7]), vec![70])));
        assert_eq!((all.chain_of(BlockHash(6)), all.chain_of(BlockHash(8))), (None, None));
        assert_eq!(meanings(&[(Some(2), &[1, 2])], &[]).chain_of(BlockHash(2)), None, "in a circle");
    }

    #[test]
    fn a_name_of_two_blocks_is_nobodys() {
        let twice = [(None, &[1, 2, 3][..]), (Some(1), &[2][..])];
        assert!(meanings(&twice, &[]).chain_of(BlockHash(3)).is_some(), "the same twice");
        let other = meanings(&twice, &[(3, 77)]);
        assert_eq!((other.chain_of(BlockHash(2)), other.chain_of(BlockHash(3))), (None, None));
        assert!(other.chain_of(BlockHash(1)).is_some());
        let elsewhere = meanings(&[(None, &[1, 2]), (None, &[2]), (Some(1), &[2])], &[]);
        assert_eq!(elsewhere.chain_of(BlockHash(2)), None);
    }
}
