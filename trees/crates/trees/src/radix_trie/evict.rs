//! Eviction: the least recently used leaf that nobody uses, from its tail, then the next.

use super::node::{NONE, Node, ROOT};
use super::trie::RadixTrie;

impl<B> RadixTrie<B> {
    /// Takes up to `wanted` blocks out of the trie, fewer if the rest is in use. They are the caller's from then on.
    ///
    /// Leaf by leaf, each leaf's part in the order of its tokens. A leaf of which only the tail was needed stays
    /// without it; handles to its old end are refused from then on. O(evicted · log leaves).
    pub fn evict_blocks(&mut self, wanted: usize) -> Vec<B> {
        let mut evicted = Vec::new();
        self.evict_with(wanted, |_, blocks| evicted.extend(blocks));
        evicted
    }

    /// Does the same as [`Self::evict_blocks`], and shows the tokens of each part with its blocks.
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
                // Below half, what was reserved for the tail goes back.
                if node.tokens.capacity() / 2 > node.tokens.len() {
                    node.tokens.shrink_to_fit();
                    node.blocks.shrink_to_fit();
                }
            }
        }
        self.give_back();
    }

    /// Takes everything out, in use or not, and returns the blocks. Every handle but the root's is refused from then on.
    pub fn clear(&mut self) -> Vec<B> {
        let nodes = std::mem::take(&mut self.nodes);
        self.nodes.push(Node::new(NONE, 0, Vec::new(), Vec::new(), 0, 1));
        (self.vacant, self.order, self.children, self.blocks) = Default::default();
        nodes.into_iter().flat_map(|node| node.blocks).collect()
    }

    /// Takes an empty leaf out of the trie; its parent may be next.
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

    /// Gives the places of evicted nodes back: those at the end of the vector.
    ///
    /// Places in the middle cannot move, as handles name them; the lowest are the first to be used again.
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
