//! Block hashes computed from prompts, each with the block hash of its parent and the block's content hash.

use std::sync::Arc;

use hashbrown::HashMap;
use kvatlas_index::BlockHash;

/// Maximum number of computed block hashes kept; 2^18 of them occupy about 12 MB.
pub const MOST_NAMES: usize = 1 << 18;

/// Leading blocks of a prompt: their block hashes and content hashes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Chain {
    /// Block hashes of the blocks, from the prompt's first block on.
    pub names: Vec<BlockHash>,
    /// Content hashes of the blocks, in the same order as `names`.
    pub contents: Vec<u64>,
    /// Cache salt of the prompt; `None` without one.
    pub salt: Option<Arc<str>>,
}

/// Block hashes computed from prompts, each with the block hash of the parent. All are dropped when there are too many;
/// they are computed again when the prompts recur.
#[derive(Debug, Default)]
pub struct Chains {
    names: HashMap<BlockHash, (Option<BlockHash>, u64)>,
    /// Cache salts of prompts, by the block hash of the prompt's first block.
    salts: HashMap<BlockHash, Arc<str>>,
    /// Number of times that all block hashes were dropped because there were too many.
    pub forgotten: u64,
}

impl Chains {
    /// Adds the block hashes of consecutive blocks of a prompt; the first one follows the block `parent`.
    pub fn add(&mut self, parent: Option<BlockHash>, names: &[BlockHash], contents: &[u64], salt: Option<&Arc<str>>) {
        let mut parent = parent;
        if parent.is_none()
            && let (Some(salt), Some(&first)) = (salt, names.first())
        {
            self.salts.insert(first, salt.clone());
        }
        for (&name, &content) in names.iter().zip(contents) {
            self.names.insert(name, (parent, content));
            parent = Some(name);
        }
    }

    /// Drops all block hashes if there are too many. Returns true if they were dropped.
    pub fn shrink(&mut self) -> bool {
        let is_full = self.names.len() > MOST_NAMES;
        if is_full {
            *self = Self { forgotten: self.forgotten + 1, ..Self::default() };
        }
        is_full
    }

    /// Returns the blocks of a prompt from its beginning up to the block with this hash; `None` if one of them is
    /// unknown.
    #[must_use]
    pub fn up_to(&self, name: BlockHash) -> Option<Chain> {
        let mut chain = Chain::default();
        let mut at = Some(name);
        while let Some(name) = at {
            let &(parent, content) = self.names.get(&name)?;
            chain.names.push(name);
            chain.contents.push(content);
            // Names in a circle cannot be digests.
            if chain.names.len() > self.names.len() {
                return None;
            }
            at = parent;
        }
        chain.names.reverse();
        chain.contents.reverse();
        chain.salt = self.salts.get(&chain.names[0]).cloned();
        Some(chain)
    }

    /// Returns the number of block hashes kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// True if no block hashes are kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(of: &[u64]) -> Vec<BlockHash> {
        of.iter().copied().map(BlockHash).collect()
    }

    #[test]
    fn a_chain_is_whole_or_not_there() {
        let mut chains = Chains::default();
        let salt: Arc<str> = "s".into();
        chains.add(None, &names(&[1, 2]), &[10, 20], Some(&salt));
        chains.add(Some(BlockHash(2)), &names(&[3]), &[30], Some(&salt));
        chains.add(Some(BlockHash(7)), &names(&[8]), &[80], None);
        let chain = chains.up_to(BlockHash(3)).expect("whole");
        assert_eq!(
            (chain.names, chain.contents, chain.salt.as_deref()),
            (names(&[1, 2, 3]), vec![10, 20, 30], Some("s"))
        );
        assert_eq!((chains.up_to(BlockHash(8)), chains.up_to(BlockHash(4))), (None, None));
        chains.add(Some(BlockHash(8)), &names(&[7]), &[70], None);
        assert_eq!(chains.up_to(BlockHash(8)), None, "in a circle");
    }
}
