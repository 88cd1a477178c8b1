//! Eviction: the least recently used unmarked leaf, from its end, then the next.

use super::node::{NONE, Node, ROOT};
use super::trie::RadixTrie;

impl<B> RadixTrie<B> {
    /// Takes up to `wanted` blocks out of the trie, fewer if the rest is in use. The caller owns them from then on.
    ///
    /// Leaves are taken one by one, each leaf's blocks in the order of its tokens. A leaf that is taken in part keeps
    /// its beginning; handles to its old end become invalid. O(evicted · log leaves).
    pub fn evict_blocks(&mut self, wanted: usize) -> Vec<B> {
        let mut evicted = Vec::new();
        self.evict_with(wanted, |_, blocks| evicted.extend(blocks));
        evicted
    }

    /// The same as [`Self::evict_blocks`], with the tokens of each part passed beside its blocks.
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

    /// Removes everything, in use or not, and returns the blocks. Every handle but the root's becomes invalid.
    pub fn clear(&mut self) -> Vec<B> {
        let nodes = std::mem::take(&mut self.nodes);
        self.nodes.push(Node::new(NONE, 0, Vec::new(), Vec::new(), 0, 1));
        (self.vacant, self.order, self.children, self.blocks) = Default::default();
        nodes.into_iter().flat_map(|node| node.blocks).collect()
    }

    /// Removes an empty leaf from the trie; its parent may become a leaf.
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

    /// Releases the slots of evicted nodes at the end of the vector.
    ///
    /// Slots in the middle cannot move, as handles refer to them; the lowest are reused first.
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
