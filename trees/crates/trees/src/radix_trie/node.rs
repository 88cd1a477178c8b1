//! Nodes in one vector, identified by index and generation.
//!
//! There are no pointers between nodes, so nothing recurses, not even dropping a trie a million levels deep. A
//! generation is never used twice: it is new for every node, and for a node that lost its last pages, so a handle
//! refers either to the end it was made for, or to nothing.

use smallvec::SmallVec;

/// The index that stands for no node.
pub(super) const NONE: u32 = u32::MAX;
/// The index of the root.
pub(super) const ROOT: u32 = 0;

/// A handle to a node: to the end of one cached sequence of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeId {
    pub(super) index: u32,
    pub(super) generation: u64,
}

/// Consecutive pages, and the blocks that back them.
#[derive(Debug)]
pub(super) struct Node<B> {
    /// The node's tokens, `page_size * blocks.len()` in number; empty for the root only.
    pub(super) tokens: Vec<u32>,
    pub(super) blocks: Vec<B>,
    pub(super) parent: u32,
    /// The first of a linked list of children, in order of insertion; the child that begins with a given page is found
    /// in the hash table.
    pub(super) first_child: u32,
    pub(super) last_child: u32,
    pub(super) next: u32,
    pub(super) previous: u32,
    /// The hash of parent and first page, the node's key in the hash table.
    pub(super) key: u64,
    /// The sequences that use the node, in increasing order.
    pub(super) users: SmallVec<[i64; 2]>,
    /// The time at which the node was made or last released, by the trie's own clock.
    pub(super) stamp: u64,
    /// The generation of the node in this slot; 0 for a vacant slot.
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

    /// Adds a user. Returns true if it is new.
    pub(super) fn take(&mut self, sequence: i64) -> bool {
        match self.users.binary_search(&sequence) {
            Ok(_) => false,
            Err(at) => {
                self.users.insert(at, sequence);
                true
            }
        }
    }

    /// Removes a user, if present.
    pub(super) fn release(&mut self, sequence: i64) {
        if let Ok(at) = self.users.binary_search(&sequence) {
            self.users.remove(at);
        }
    }
}
