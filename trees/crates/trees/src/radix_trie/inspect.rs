//! Looking at a trie without changing it: its nodes one by one, and what it has.

use super::error::Error;
use super::node::{NONE, Node, NodeId, ROOT};
use super::trie::RadixTrie;

/// The tokens and the blocks of a node.
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

    /// Number of nodes in the trie, the root among them.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.nodes.len() - self.vacant.len()
    }

    /// The tokens of a node; the root has none.
    ///
    /// # Errors
    ///
    /// [`Error::EvictedNode`], as all that ask about a node.
    pub fn tokens(&self, node: NodeId) -> Result<&[u32], Error> {
        Ok(&self.node(node)?.tokens)
    }

    /// The blocks of a node, one for each page of its tokens.
    ///
    /// # Errors
    ///
    /// [`Error::EvictedNode`].
    pub fn blocks(&self, node: NodeId) -> Result<&[B], Error> {
        Ok(&self.node(node)?.blocks)
    }

    /// The sequences that use a node, rising.
    ///
    /// # Errors
    ///
    /// [`Error::EvictedNode`].
    pub fn users(&self, node: NodeId) -> Result<&[i64], Error> {
        Ok(&self.node(node)?.users)
    }

    /// The node above; `None` for the root.
    ///
    /// # Errors
    ///
    /// [`Error::EvictedNode`].
    pub fn parent(&self, node: NodeId) -> Result<Option<NodeId>, Error> {
        let parent = self.node(node)?.parent;
        Ok((parent != NONE).then(|| self.name(parent)))
    }

    /// The nodes right below, in the order of their coming.
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

    /// Every node from below the root down to this one, with tokens and blocks.
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

    /// Shows every node but the root, depth first, children in the order of their coming: its depth (0 right below the
    /// root), tokens and blocks.
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

    /// Every block in the trie.
    pub fn all_blocks(&self) -> impl Iterator<Item = &B> {
        self.nodes.iter().flat_map(|node| &node.blocks)
    }

    /// The blocks that eviction could take now: of the nodes that nobody uses and with nobody below them. O(nodes).
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
