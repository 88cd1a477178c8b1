//! `RadixTrie`: which cached pages a prompt can use, inside one engine with paged attention.
//!
//! A radix trie over whole pages of tokens, one block for each page. The engine's allocator inserts what was computed,
//! matches new prompts, marks what running sequences use, and evicts when its pool is dry: the least recently used
//! leaf that nobody uses, from its tail.
//!
//! The names and what they do are those of MAX's `RadixTrie`; what is different on purpose is said at each method.
//!
//! | call | time |
//! |---|---|
//! | [`insert`](RadixTrie::insert), [`match_prefix`](RadixTrie::match_prefix) | O(tokens), and O(length of the node) if one is split |
//! | [`mark_in_use_by`](RadixTrie::mark_in_use_by), [`mark_not_in_use_by`](RadixTrie::mark_not_in_use_by) | O(nodes up to the root) |
//! | [`evict_blocks`](RadixTrie::evict_blocks) | O(evicted · log leaves); nothing else is looked at |
//!
//! Children are found in one hash table by parent and first page. The leaves that nobody uses are kept in the order of
//! their stamps as things change. A parent is not among them while it has a child, so that children go before parents
//! follows from the structure and not from times. Times are a counter: no ties, and no clock that steps.
//!
//! ```
//! use kvatlas_trees::radix_trie::RadixTrie;
//!
//! let mut trie = RadixTrie::new(2)?;
//! let end = trie.insert([1, 2, 3, 4].as_slice(), &mut vec!["a", "b"], None)?;
//! let (node, blocks) = trie.match_prefix([1, 2, 3, 9].as_slice(), None)?;
//! assert_eq!(blocks, ["a"]);
//! trie.mark_in_use_by(node, 7)?;
//! assert_eq!(trie.evict_blocks(10), ["b"]);
//! assert!(trie.tokens(end).is_err());
//! # Ok::<(), kvatlas_trees::radix_trie::Error>(())
//! ```

mod error;
mod evict;
mod look;
mod node;
#[cfg(test)]
mod tests;
mod tokens;

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub use error::Error;
pub use node::NodeId;
use node::{NONE, Node, ROOT};
pub use tokens::{Tokens, Wide};

/// See the module's text. `B` is whatever a block is to the caller.
#[derive(Debug)]
pub struct RadixTrie<B> {
    page_size: usize,
    /// The root first; vacant places have generation 0 and are in `vacant`.
    nodes: Vec<Node<B>>,
    /// The lowest is used first, so that the end of `nodes` becomes free and goes back.
    vacant: BTreeSet<u32>,
    /// All nodes but the root, by parent and first page.
    children: HashTable<u32>,
    /// Leaves that nobody uses, least recently used first.
    order: BTreeSet<(u64, u32)>,
    blocks: usize,
    clock: u64,
    generation: u64,
    /// Pages cannot be chosen so that many meet in one place of the table.
    seed: u64,
    page: Vec<u32>,
}

impl<B> RadixTrie<B> {
    /// An empty trie of pages of so many tokens.
    ///
    /// # Errors
    ///
    /// [`Error::PageSize`] if that is 0.
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

    /// Tokens in a page.
    #[must_use]
    pub fn page_size(&self) -> usize {
        self.page_size
    }

    /// Where every sequence begins.
    #[must_use]
    pub fn root(&self) -> NodeId {
        self.name(ROOT)
    }

    /// Keeps a block for each page of `tokens`, which follow the end of `node` (the root if `None`).
    ///
    /// Pages that are there already keep the blocks they have. Taken blocks are taken out of `blocks`: what is left
    /// in it belongs to pages that were there, its first ones, and the caller may use those blocks for something
    /// else. Returns the end of the sequence. Times of nodes on the way do not change; a new leaf is evictable until
    /// it is marked.
    ///
    /// # Errors
    ///
    /// [`Error::Unaligned`], [`Error::BlockCount`], [`Error::Empty`], [`Error::EvictedNode`] and [`Error::Full`];
    /// `blocks` is as it was.
    pub fn insert(
        &mut self,
        tokens: &(impl Tokens + ?Sized),
        blocks: &mut Vec<B>,
        node: Option<NodeId>,
    ) -> Result<NodeId, Error> {
        self.insert_from(tokens, blocks.len(), node, |start| blocks.split_off(start)).map(|(end, _)| end)
    }

    /// [`Self::insert`] that asks for the blocks once it knows how many of the `count` it needs: those from the number
    /// given to `blocks` on. Returns the end and that number.
    ///
    /// # Errors
    ///
    /// As [`Self::insert`]; [`Error::BlockCount`] also if `blocks` gives another number of blocks.
    pub fn insert_from(
        &mut self,
        tokens: &(impl Tokens + ?Sized),
        count: usize,
        node: Option<NodeId>,
        blocks: impl FnOnce(usize) -> Vec<B>,
    ) -> Result<(NodeId, usize), Error> {
        let length = tokens.len();
        let start = self.check_insert(length, count, node)?;
        let (node, at) = self.descend(tokens, length, start, |_| {});
        if at == length {
            return Ok((self.name(node), count));
        }
        let known = at / self.page_size;
        let taken = blocks(known);
        if taken.len() != count - known {
            return Err(Error::BlockCount { tokens: length, page_size: self.page_size, blocks: known + taken.len() });
        }
        let mut kept = Vec::with_capacity(length - at);
        tokens.copy(at, length, &mut kept);
        self.blocks += taken.len();
        self.clock += 1;
        let was = (self.nodes[node as usize].stamp, node);
        let key = self.key(node, &kept[..self.page_size]);
        let leaf = self.add(node, key, kept, taken, self.clock);
        self.link_last(node, leaf);
        self.children.insert_unique(key, leaf, |&child| self.nodes[child as usize].key);
        self.order.remove(&was);
        self.order.insert((self.clock, leaf));
        Ok((self.name(leaf), known))
    }

    /// Whether [`Self::insert`] would refuse so many tokens and blocks below a node.
    ///
    /// # Errors
    ///
    /// As [`Self::insert`].
    pub fn can_insert(&self, tokens: usize, blocks: usize, node: Option<NodeId>) -> Result<(), Error> {
        self.check_insert(tokens, blocks, node).map(|_| ())
    }

    fn check_insert(&self, tokens: usize, blocks: usize, node: Option<NodeId>) -> Result<u32, Error> {
        if !tokens.is_multiple_of(self.page_size) {
            return Err(Error::Unaligned { tokens, page_size: self.page_size });
        }
        if tokens / self.page_size != blocks {
            return Err(Error::BlockCount { tokens, page_size: self.page_size, blocks });
        }
        if tokens == 0 {
            return Err(Error::Empty);
        }
        // A split and a leaf, and NONE is no index.
        if self.vacant.len() < 2 && self.nodes.len() >= NONE as usize - 2 {
            return Err(Error::Full { nodes: self.nodes.len() });
        }
        self.start(node)
    }

    /// The longest cached prefix of `tokens`, in whole pages, below `node` (the root if `None`): where it ends, and
    /// its blocks.
    ///
    /// A match that ends inside a node splits the node, so that there is a node with just this end. Nothing becomes
    /// more recently used by it: only making and releasing do that.
    ///
    /// # Errors
    ///
    /// As [`Self::match_prefix_with`].
    pub fn match_prefix(
        &mut self,
        tokens: &(impl Tokens + ?Sized),
        node: Option<NodeId>,
    ) -> Result<(NodeId, Vec<B>), Error>
    where
        B: Clone,
    {
        let mut blocks = Vec::new();
        let node = self.match_prefix_with(tokens, node, |more| blocks.extend_from_slice(more))?;
        Ok((node, blocks))
    }

    /// [`Self::match_prefix`] that shows the blocks, node by node, instead of copying them.
    ///
    /// # Errors
    ///
    /// [`Error::Empty`], [`Error::EvictedNode`], and [`Error::Full`] if a node can no longer be split.
    pub fn match_prefix_with(
        &mut self,
        tokens: &(impl Tokens + ?Sized),
        node: Option<NodeId>,
        show: impl FnMut(&[B]),
    ) -> Result<NodeId, Error> {
        if tokens.is_empty() {
            return Err(Error::Empty);
        }
        if self.vacant.is_empty() && self.nodes.len() >= NONE as usize - 2 {
            return Err(Error::Full { nodes: self.nodes.len() });
        }
        let start = self.start(node)?;
        let (node, _) = self.descend(tokens, tokens.len() - tokens.len() % self.page_size, start, show);
        Ok(self.name(node))
    }

    /// A sequence uses the node and everything above it: none of that is evicted until it is released. Marking twice
    /// is marking once.
    ///
    /// # Errors
    ///
    /// [`Error::EvictedNode`].
    pub fn mark_in_use_by(&mut self, node: NodeId, sequence: i64) -> Result<(), Error> {
        let mut at = self.index(node)?;
        while at != ROOT {
            let node = &mut self.nodes[at as usize];
            if !node.take(sequence) {
                break;
            }
            self.order.remove(&(node.stamp, at));
            at = node.parent;
        }
        Ok(())
    }

    /// A sequence uses the node and what is above it no longer; all of that is now the most recently used.
    ///
    /// Mark the deepest node as a sequence grows, and release once, from the deepest marked node. A mark left deeper
    /// still protects, and can still be released.
    ///
    /// # Errors
    ///
    /// [`Error::EvictedNode`], and [`Error::NotInUse`] if the sequence has not marked this node.
    pub fn mark_not_in_use_by(&mut self, node: NodeId, sequence: i64) -> Result<(), Error> {
        let mut at = self.index(node)?;
        if at != ROOT && self.nodes[at as usize].users.binary_search(&sequence).is_err() {
            return Err(Error::NotInUse { sequence });
        }
        self.clock += 1;
        while at != ROOT {
            let node = &mut self.nodes[at as usize];
            node.release(sequence);
            let was = (node.stamp, at);
            node.stamp = self.clock;
            if node.is_leaf() && node.users.is_empty() {
                self.order.remove(&was);
                self.order.insert((self.clock, at));
            }
            at = node.parent;
        }
        Ok(())
    }

    /// Follows the first `length` tokens down from a node, whole pages only. Returns where they end in the trie and
    /// how many that is.
    fn descend(
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

    /// The child that begins with the page of `tokens` at `at`.
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

    /// Puts the first `length` tokens of a node into a new one above it. The node keeps its end, and so its name.
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

    fn key(&self, parent: u32, page: &[u32]) -> u64 {
        xxh3_64_with_seed(bytemuck::cast_slice(page), self.seed ^ u64::from(parent) << 32)
    }

    /// A node in a vacant place, not yet linked to anything.
    fn add(&mut self, parent: u32, key: u64, tokens: Vec<u32>, blocks: Vec<B>, stamp: u64) -> u32 {
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

    fn link_last(&mut self, parent: u32, child: u32) {
        let last = std::mem::replace(&mut self.nodes[parent as usize].last_child, child);
        self.nodes[child as usize].previous = last;
        match last {
            NONE => self.nodes[parent as usize].first_child = child,
            last => self.nodes[last as usize].next = child,
        }
    }

    /// Gives a new node the place of another among its siblings.
    fn put_in_place_of(&mut self, old: u32, new: u32) {
        let Node { parent, next, previous, .. } = self.nodes[old as usize];
        let node = &mut self.nodes[new as usize];
        (node.next, node.previous) = (next, previous);
        self.link_neighbours(parent, previous, next, new, new);
    }

    /// Tells the neighbours of a place who comes after the one and before the other.
    fn link_neighbours(&mut self, parent: u32, previous: u32, next: u32, after: u32, before: u32) {
        match previous {
            NONE => self.nodes[parent as usize].first_child = after,
            previous => self.nodes[previous as usize].next = after,
        }
        match next {
            NONE => self.nodes[parent as usize].last_child = before,
            next => self.nodes[next as usize].previous = before,
        }
    }

    fn name(&self, index: u32) -> NodeId {
        NodeId { index, generation: self.nodes[index as usize].generation }
    }

    fn index(&self, node: NodeId) -> Result<u32, Error> {
        match self.nodes.get(node.index as usize) {
            Some(found) if found.generation == node.generation => Ok(node.index),
            _ => Err(Error::EvictedNode),
        }
    }

    fn start(&self, node: Option<NodeId>) -> Result<u32, Error> {
        node.map_or(Ok(ROOT), |node| self.index(node))
    }
}
