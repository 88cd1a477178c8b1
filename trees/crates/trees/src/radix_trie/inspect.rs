//! Read-only access to a radix trie: its nodes, blocks and sizes.

use super::Error;
use super::trie::{NONE, Node, NodeId, ROOT, RadixTrie};

/// Tokens and blocks of one node on a path of the trie.
type Part<'a, B> = (&'a [u32], &'a [B]);

impl<B> RadixTrie<B> {
    /// Number of blocks in the trie.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks
    }

    /// True if the trie has no blocks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    /// Number of nodes in the trie, including the root.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.nodes.len() - self.vacant.len()
    }

    /// Tokens of a node, without those of its ancestors; the root has none.
    ///
    /// # Errors
    ///
    /// [`Error::EvictedNode`] if the node was evicted.
    pub fn tokens(&self, node: NodeId) -> Result<&[u32], Error> {
        Ok(&self.node(node)?.tokens)
    }

    /// Blocks of a node, one for each page of its tokens.
    ///
    /// # Errors
    ///
    /// [`Error::EvictedNode`].
    pub fn blocks(&self, node: NodeId) -> Result<&[B], Error> {
        Ok(&self.node(node)?.blocks)
    }

    /// Numbers of the sequences that use a node, in increasing order.
    ///
    /// # Errors
    ///
    /// [`Error::EvictedNode`].
    pub fn users(&self, node: NodeId) -> Result<&[i64], Error> {
        Ok(&self.node(node)?.users)
    }

    /// Parent of a node; `None` for the root.
    ///
    /// # Errors
    ///
    /// [`Error::EvictedNode`].
    pub fn parent(&self, node: NodeId) -> Result<Option<NodeId>, Error> {
        let parent = self.node(node)?.parent;
        Ok((parent != NONE).then(|| self.name(parent)))
    }

    /// Children of a node, in order of insertion.
    ///
    /// # Errors
    ///
    /// [`Error::EvictedNode`].
    pub fn children(&self, node: NodeId) -> Result<Vec<NodeId>, Error> {
        let mut at = self.node(node)?.first_child;
        let mut children = Vec::new();
        while at != NONE {
            children.push(self.name(at));
            at = self.nodes[at as usize].next;
        }
        Ok(children)
    }

    /// Tokens and blocks of all nodes on the path from the root, which is left out, to the given node.
    ///
    /// # Errors
    ///
    /// [`Error::EvictedNode`].
    pub fn path(&self, node: NodeId) -> Result<Vec<Part<'_, B>>, Error> {
        let mut at = self.index(node)?;
        let mut path = Vec::new();
        while at != ROOT {
            let node = &self.nodes[at as usize];
            path.push((&*node.tokens, &*node.blocks));
            at = node.parent;
        }
        path.reverse();
        Ok(path)
    }

    /// Visits every node but the root, depth first, children in order of insertion. `see`: called with the node's depth
    /// (0 just below the root), tokens and blocks.
    pub fn visit(&self, mut see: impl FnMut(usize, &[u32], &[B])) {
        let (mut at, mut depth) = (self.nodes[ROOT as usize].first_child, 0);
        while at != NONE {
            let node = &self.nodes[at as usize];
            see(depth, &node.tokens, &node.blocks);
            if !node.is_leaf() {
                (at, depth) = (node.first_child, depth + 1);
                continue;
            }
            while at != ROOT && self.nodes[at as usize].next == NONE {
                at = self.nodes[at as usize].parent;
                depth = depth.saturating_sub(1);
            }
            at = self.nodes[at as usize].next;
        }
    }

    /// All blocks in the trie.
    pub fn all_blocks(&self) -> impl Iterator<Item = &B> {
        self.nodes.iter().flat_map(|node| &node.blocks)
    }

    /// Blocks that could be evicted now: those of nodes that are not in use and have no node in use below them.
    /// O(nodes).
    pub fn evictable_blocks(&self) -> impl Iterator<Item = &B> {
        let mut busy = vec![false; self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            let mut at = if node.users.is_empty() { NONE } else { index as u32 };
            while at != NONE && !std::mem::replace(&mut busy[at as usize], true) {
                at = self.nodes[at as usize].parent;
            }
        }
        self.nodes.iter().zip(busy).filter(|(_, busy)| !busy).flat_map(|(node, _)| &node.blocks)
    }

    fn node(&self, node: NodeId) -> Result<&Node<B>, Error> {
        self.index(node).map(|index| &self.nodes[index as usize])
    }
}
