//! Nodes in one vector, named by index and generation.
//!
//! Nothing is reached through pointers of its own, so nothing recurses, not even dropping a trie a million levels
//! deep. A generation is never used twice: it is new for every node, and new for a node that lost its last pages, so
//! a handle either means the end it meant when it was made, or nothing.

use smallvec::SmallVec;

/// The place of no node.
pub(super) const NONE: u32 = u32::MAX;
/// The place of the root, which never changes.
pub(super) const ROOT: u32 = 0;

/// The name of a node: of the end of one cached sequence of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeId {
    pub(super) index: u32,
    pub(super) generation: u64,
}

/// Some pages that follow one another, and the blocks that back them.
#[derive(Debug)]
pub(super) struct Node<B> {
    /// The node's tokens, `page_size * blocks.len()` of them; only the root has none.
    pub(super) tokens: Vec<u32>,
    pub(super) blocks: Vec<B>,
    pub(super) parent: u32,
    /// The first of the children, which are a list in the order of their coming; which one begins with a page is looked
    /// up in one table.
    pub(super) first_child: u32,
    pub(super) last_child: u32,
    pub(super) next: u32,
    pub(super) previous: u32,
    /// The hash of parent and first page, under which the table has this node.
    pub(super) key: u64,
    /// The sequences that use the node, rising.
    pub(super) users: SmallVec<[i64; 2]>,
    /// The time at which the node was made or last released, by the trie's own clock.
    pub(super) stamp: u64,
    /// The number of the node that has this place; 0 for a place without a node.
    pub(super) generation: u64,
}

impl<B> Node<B> {
    pub(super) fn new(parent: u32, key: u64, tokens: Vec<u32>, blocks: Vec<B>, stamp: u64, generation: u64) -> Self {
        Self {
            tokens,
            blocks,
            parent,
            first_child: NONE,
            last_child: NONE,
            next: NONE,
            previous: NONE,
            key,
            users: SmallVec::new(),
            stamp,
            generation,
        }
    }

    pub(super) fn is_leaf(&self) -> bool {
        self.first_child == NONE
    }

    /// Adds a user. Returns whether it is new.
    pub(super) fn take(&mut self, sequence: i64) -> bool {
        match self.users.binary_search(&sequence) {
            Ok(_) => false,
            Err(at) => {
                self.users.insert(at, sequence);
                true
            }
        }
    }

    /// Takes a user away if it is there.
    pub(super) fn release(&mut self, sequence: i64) {
        if let Ok(at) = self.users.binary_search(&sequence) {
            self.users.remove(at);
        }
    }
}
