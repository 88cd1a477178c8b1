//! The trie: its nodes, their links, and the descent by tokens.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::error::Error;
use super::node::{NONE, Node, NodeId, ROOT};
use super::tokens::Tokens;

/// A trie of the cached pages that a prompt can use: see the module's text. `B` is the caller's type of blocks.
#[derive(Debug)]
pub struct RadixTrie<B> {
    pub(super) page_size: usize,
    /// The nodes, the root first; vacant slots have generation 0 and are listed in `vacant`.
    pub(super) nodes: Vec<Node<B>>,
    /// The vacant slots. The lowest is reused first, so that the end of `nodes` becomes free and can be released.
    pub(super) vacant: BTreeSet<u32>,
    /// All nodes but the root, by parent and first page.
    pub(super) children: HashTable<u32>,
    /// Unmarked leaves, least recently used first.
    pub(super) order: BTreeSet<(u64, u32)>,
    pub(super) blocks: usize,
    pub(super) clock: u64,
    pub(super) generation: u64,
    /// The seed of the table's hashes, random so that chosen pages cannot collide in it.
    pub(super) seed: u64,
    pub(super) page: Vec<u32>,
}

impl<B> RadixTrie<B> {
    /// Makes an empty trie with pages of `page_size` tokens.
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

    /// Tokens in a page.
    #[must_use]
    pub fn page_size(&self) -> usize {
        self.page_size
    }

    /// The handle of the root, at which every sequence begins.
    #[must_use]
    pub fn root(&self) -> NodeId {
        self.name(ROOT)
    }

    /// Follows the first `length` tokens down from a node, in whole pages. Returns the end reached and the number of
    /// tokens.
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

    /// The child whose first page equals `tokens` at `at`.
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

    /// Moves the first `length` tokens of a node into a new node above it. The node keeps its end, and so its handles.
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

    /// Adds a node in a vacant slot, not yet linked to others.
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

    /// Puts a new node in the place of another among its siblings.
    fn put_in_place_of(&mut self, old: u32, new: u32) {
        let Node { parent, next, previous, .. } = self.nodes[old as usize];
        let node = &mut self.nodes[new as usize];
        (node.next, node.previous) = (next, previous);
        self.link_neighbours(parent, previous, next, new, new);
    }

    /// Updates the neighbours of a place: their next and previous siblings.
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
