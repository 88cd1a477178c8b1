//! A radix trie: nodes, their links, the descent by tokens, and eviction of the least recently used leaf not in use,
//! from its end.
//!
//! Nodes are in one vector, identified by index and generation. There are no pointers between nodes, so nothing
//! recurses, not even dropping a trie a million levels deep. A generation number is never used twice: every new node
//! gets one, and so does a node that lost its last pages, so that a handle ([`NodeId`]) refers either to the end for
//! which it was created, or to nothing.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Error, Tokens};

/// Index that stands for no node of the trie.
pub(super) const NONE: u32 = u32::MAX;
/// Index of the root node, at which every sequence begins.
pub(super) const ROOT: u32 = 0;

/// Identifier of a node, and so of the end of one cached sequence of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeId {
    pub(super) index: u32,
    pub(super) generation: u64,
}

/// A node of the trie: consecutive pages of tokens with their blocks.
#[derive(Debug)]
pub(super) struct Node<B> {
    /// Tokens of the node, `page_size * blocks.len()` in number; empty for the root only.
    pub(super) tokens: Vec<u32>,
    pub(super) blocks: Vec<B>,
    pub(super) parent: u32,
    /// Index of the first child in a linked list of children, in order of insertion. The child that begins with a given
    /// page is found in a hash table.
    pub(super) first_child: u32,
    pub(super) last_child: u32,
    pub(super) next: u32,
    pub(super) previous: u32,
    /// Hash of the parent and the node's first page, the node's key in the hash table of children.
    pub(super) key: u64,
    /// Numbers of the sequences that use the node, in increasing order.
    pub(super) users: SmallVec<[i64; 2]>,
    /// Time at which the node was created or last released, on the trie's clock, which counts operations.
    pub(super) stamp: u64,
    /// Generation number of the node in this slot (place in the vector of nodes), which grows when the slot is reused;
    /// 0 for an unused slot.
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

    /// Records that a sequence uses the node. Returns true if the sequence did not use it before.
    pub(super) fn take(&mut self, sequence: i64) -> bool {
        match self.users.binary_search(&sequence) {
            Ok(_) => false,
            Err(at) => {
                self.users.insert(at, sequence);
                true
            }
        }
    }

    /// Removes a sequence from the users of the node, if present.
    pub(super) fn release(&mut self, sequence: i64) {
        if let Ok(at) = self.users.binary_search(&sequence) {
            self.users.remove(at);
        }
    }
}

/// A trie of the cached pages that a prompt can use, inside one engine with paged attention. `B` is the caller's type
/// of blocks.
#[derive(Debug)]
pub struct RadixTrie<B> {
    pub(super) page_size: usize,
    /// Nodes of the trie by index, the root first; unused slots (places for nodes) have generation 0 and are listed in
    /// `vacant`.
    pub(super) nodes: Vec<Node<B>>,
    /// Indexes of unused slots (places in the vector of nodes). The lowest is reused first, so that the end of `nodes`
    /// becomes free and can be released.
    pub(super) vacant: BTreeSet<u32>,
    /// Hash table of the indexes of all nodes but the root, found by parent and first page of tokens.
    pub(super) children: HashTable<u32>,
    /// Leaves (nodes without children) not in use, by time of last use and index, the least recently used first.
    pub(super) order: BTreeSet<(u64, u32)>,
    pub(super) blocks: usize,
    pub(super) clock: u64,
    pub(super) generation: u64,
    /// Seed of the hash table's hashes, random so that clients cannot choose pages that collide.
    pub(super) seed: u64,
    pub(super) page: Vec<u32>,
}

impl<B> RadixTrie<B> {
    /// Creates an empty trie with pages of `page_size` tokens.
    ///
    /// # Errors
    ///
    /// [`Error::PageSize`] if `page_size` is 0.
    pub fn new(page_size: usize) -> Result<Self, Error> {
        if page_size == 0 {
            return Err(Error::PageSize { got: 0 });
        }
        Ok(Self {
            page_size,
            nodes: vec![Node::new(NONE, 0, Vec::new(), Vec::new(), 0, 1)],
            vacant: BTreeSet::new(),
            children: HashTable::new(),
            order: BTreeSet::new(),
            blocks: 0,
            clock: 0,
            generation: 1,
            seed: RandomState::new().hash_one(page_size),
            page: Vec::new(),
        })
    }

    /// Number of tokens in a page.
    #[must_use]
    pub fn page_size(&self) -> usize {
        self.page_size
    }

    /// Identifier of the trie's root node, at which every sequence begins.
    #[must_use]
    pub fn root(&self) -> NodeId {
        self.name(ROOT)
    }

    /// Follows the first `length` tokens down from a node, in whole pages. Returns the node reached and the number of
    /// matched tokens.
    pub(super) fn descend(
        &mut self,
        tokens: &(impl Tokens + ?Sized),
        length: usize,
        start: u32,
        mut show: impl FnMut(&[B]),
    ) -> (u32, usize) {
        let (mut node, mut at) = (start, 0);
        while length - at >= self.page_size {
            let Some(child) = self.child(node, tokens, at) else { break };
            let kept = &self.nodes[child as usize].tokens;
            let limit = kept.len().min(length - at);
            let same = self.page_size + tokens.common(at + self.page_size, &kept[self.page_size..limit]);
            let same = same - same % self.page_size;
            let whole = same == kept.len();
            node = if whole { child } else { self.split(child, same) };
            show(&self.nodes[node as usize].blocks);
            at += same;
            if !whole {
                break;
            }
        }
        (node, at)
    }

    /// Child of `parent` whose first page equals the tokens from index `at` on; `None` if there is none.
    fn child(&mut self, parent: u32, tokens: &(impl Tokens + ?Sized), at: usize) -> Option<u32> {
        let mut page = std::mem::take(&mut self.page);
        page.clear();
        tokens.copy(at, at + self.page_size, &mut page);
        let key = self.key(parent, &page);
        let found = self.children.find(key, |&child| {
            let node = &self.nodes[child as usize];
            node.key == key && node.parent == parent && node.tokens[..page.len()] == page[..]
        });
        let found = found.copied();
        self.page = page;
        found
    }

    /// Splits a node by moving its first `length` tokens into a new node above it. The old node keeps its end, and so
    /// its identifier stays valid. Returns the new node.
    fn split(&mut self, lower: u32, length: usize) -> u32 {
        let node = &mut self.nodes[lower as usize];
        let (parent, key, stamp) = (node.parent, node.key, node.stamp);
        let tail = node.tokens.split_off(length);
        let mut tokens = std::mem::replace(&mut node.tokens, tail);
        let tail = node.blocks.split_off(length / self.page_size);
        let mut blocks = std::mem::replace(&mut node.blocks, tail);
        tokens.shrink_to_fit();
        blocks.shrink_to_fit();
        let users = node.users.clone();
        let upper = self.add(parent, key, tokens, blocks, stamp);
        self.nodes[upper as usize].users = users;
        self.put_in_place_of(lower, upper);
        if let Ok(entry) = self.children.find_entry(key, |&child| child == lower) {
            *entry.into_mut() = upper;
        }
        let key = self.key(upper, &self.nodes[lower as usize].tokens[..self.page_size]);
        let node = &mut self.nodes[lower as usize];
        (node.parent, node.key, node.next, node.previous) = (upper, key, NONE, NONE);
        self.link_last(upper, lower);
        self.children.insert_unique(key, lower, |&child| self.nodes[child as usize].key);
        upper
    }

    pub(super) fn key(&self, parent: u32, page: &[u32]) -> u64 {
        xxh3_64_with_seed(bytemuck::cast_slice(page), self.seed ^ u64::from(parent) << 32)
    }

    /// Adds a node in an unused slot (place in the vector of nodes), not yet linked to other nodes. Returns its index.
    pub(super) fn add(&mut self, parent: u32, key: u64, tokens: Vec<u32>, blocks: Vec<B>, stamp: u64) -> u32 {
        self.generation += 1;
        let node = Node::new(parent, key, tokens, blocks, stamp, self.generation);
        match self.vacant.pop_first() {
            Some(index) => {
                self.nodes[index as usize] = node;
                index
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        }
    }

    pub(super) fn link_last(&mut self, parent: u32, child: u32) {
        let last = std::mem::replace(&mut self.nodes[parent as usize].last_child, child);
        self.nodes[child as usize].previous = last;
        match last {
            NONE => self.nodes[parent as usize].first_child = child,
            last => self.nodes[last as usize].next = child,
        }
    }

    /// Replaces a node by another one in the linked list of its siblings.
    fn put_in_place_of(&mut self, old: u32, new: u32) {
        let Node { parent, next, previous, .. } = self.nodes[old as usize];
        let node = &mut self.nodes[new as usize];
        (node.next, node.previous) = (next, previous);
        self.link_neighbours(parent, previous, next, new, new);
    }

    /// Updates the links of the neighbours of a node in the list of siblings: their next and previous siblings.
    pub(super) fn link_neighbours(&mut self, parent: u32, previous: u32, next: u32, after: u32, before: u32) {
        match previous {
            NONE => self.nodes[parent as usize].first_child = after,
            previous => self.nodes[previous as usize].next = after,
        }
        match next {
            NONE => self.nodes[parent as usize].last_child = before,
            next => self.nodes[next as usize].previous = before,
        }
    }

    pub(super) fn name(&self, index: u32) -> NodeId {
        NodeId { index, generation: self.nodes[index as usize].generation }
    }

    pub(super) fn index(&self, node: NodeId) -> Result<u32, Error> {
        match self.nodes.get(node.index as usize) {
            Some(found) if found.generation == node.generation => Ok(node.index),
            _ => Err(Error::EvictedNode),
        }
    }

    pub(super) fn start(&self, node: Option<NodeId>) -> Result<u32, Error> {
        node.map_or(Ok(ROOT), |node| self.index(node))
    }
}

impl<B> RadixTrie<B> {
    /// Removes up to `wanted` blocks from the trie and returns them to the caller; fewer if all others are in use.
    ///
    /// Leaves are evicted one by one, each leaf's blocks in the order of its tokens. A leaf that is evicted in part
    /// keeps its beginning; identifiers of its old end become invalid. O(evicted · log leaves).
    pub fn evict_blocks(&mut self, wanted: usize) -> Vec<B> {
        let mut evicted = Vec::new();
        self.evict_with(wanted, |_, blocks| evicted.extend(blocks));
        evicted
    }

    /// Removes up to `wanted` blocks like [`Self::evict_blocks`], and passes the tokens of each part together with its
    /// blocks to `take`.
    pub fn evict_with(&mut self, wanted: usize, mut take: impl FnMut(&[u32], std::vec::Drain<'_, B>)) {
        let mut left = wanted;
        while left > 0 {
            let Some(&(stamp, leaf)) = self.order.first() else { break };
            let node = &mut self.nodes[leaf as usize];
            let stay = node.blocks.len().saturating_sub(left);
            left -= node.blocks.len() - stay;
            self.blocks -= node.blocks.len() - stay;
            take(&node.tokens[stay * self.page_size..], node.blocks.drain(stay..));
            if stay == 0 {
                self.order.remove(&(stamp, leaf));
                self.unlink(leaf);
            } else {
                self.generation += 1;
                node.generation = self.generation;
                node.tokens.truncate(stay * self.page_size);
                // Below half, the capacity reserved for the end is released.
                if node.tokens.capacity() / 2 > node.tokens.len() {
                    node.tokens.shrink_to_fit();
                    node.blocks.shrink_to_fit();
                }
            }
        }
        self.give_back();
    }

    /// Removes all nodes but the root, in use or not, and returns their blocks. Identifiers of these nodes become
    /// invalid.
    pub fn clear(&mut self) -> Vec<B> {
        let nodes = std::mem::take(&mut self.nodes);
        self.nodes.push(Node::new(NONE, 0, Vec::new(), Vec::new(), 0, 1));
        (self.vacant, self.order, self.children, self.blocks) = Default::default();
        nodes.into_iter().flat_map(|node| node.blocks).collect()
    }

    /// Removes a leaf (node without children) that has no blocks left from the trie; its parent may become a leaf.
    fn unlink(&mut self, leaf: u32) {
        let Node { parent, next, previous, key, .. } = self.nodes[leaf as usize];
        self.link_neighbours(parent, previous, next, next, previous);
        if let Ok(entry) = self.children.find_entry(key, |&child| child == leaf) {
            entry.remove();
        }
        self.nodes[leaf as usize] = Node::new(NONE, 0, Vec::new(), Vec::new(), 0, 0);
        self.vacant.insert(leaf);
        let node = &self.nodes[parent as usize];
        if parent != ROOT && node.is_leaf() && node.users.is_empty() {
            self.order.insert((node.stamp, parent));
        }
    }

    /// Frees the slots (places in the vector of nodes) of evicted nodes at the end of the vector.
    ///
    /// Nodes in the middle cannot move, since identifiers contain their index; the lowest unused slots are reused
    /// first.
    fn give_back(&mut self) {
        while self.vacant.last().is_some_and(|&last| last as usize + 1 == self.nodes.len()) {
            self.vacant.pop_last();
            self.nodes.pop();
        }
        if self.nodes.capacity() / 4 > self.nodes.len() {
            self.nodes.shrink_to(self.nodes.len() * 2);
        }
        if self.children.capacity() / 4 > self.children.len() {
            self.children.shrink_to(self.children.len() * 2, |&child| self.nodes[child as usize].key);
        }
    }
}
