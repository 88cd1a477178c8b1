//! The names of one worker for the nodes that it holds.

use hashbrown::HashMap;

use super::children::NodeId;
use kvatlas_index::BlockHash;

/// The map of block hash → node, for one worker.
///
/// An engine has one name for a block, so a worker that holds a node does so by one name. Names beyond the first are
/// counted in a map of their own: the worker holds the node until it has removed them all.
#[derive(Debug, Default)]
pub(crate) struct Names {
    nodes: HashMap<BlockHash, NodeId>,
    more: HashMap<NodeId, u32>,
}

/// The effect of a name's removal on its node.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NameEnd {
    /// The worker does not know the name.
    Unknown,
    /// The worker holds the node by another name.
    StillHeld,
    /// The worker no longer holds this node.
    Left(NodeId),
}

impl Names {
    pub(crate) fn get(&self, name: BlockHash) -> Option<NodeId> {
        self.nodes.get(&name).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = BlockHash> {
        self.nodes.keys().copied()
    }

    /// Records that the worker calls `node` by `name` from now on; `first`: it did not hold the node before. Returns
    /// the node that had the name before, if there was one, for [`lose`](Self::lose).
    #[must_use]
    pub(crate) fn announce(&mut self, name: BlockHash, node: NodeId, first: bool) -> Option<NodeId> {
        let before = self.nodes.insert(name, node);
        if before == Some(node) {
            return None;
        }
        if !first {
            *self.more.entry(node).or_insert(0) += 1;
        }
        before
    }

    /// Removes a name.
    pub(crate) fn end(&mut self, name: BlockHash) -> NameEnd {
        let Some(node) = self.nodes.remove(&name) else { return NameEnd::Unknown };
        if self.nodes.capacity() > 64 && self.nodes.len() < self.nodes.capacity() / 8 {
            self.nodes.shrink_to(2 * self.nodes.len());
        }
        if self.lose(node) { NameEnd::Left(node) } else { NameEnd::StillHeld }
    }

    /// Records that a name no longer refers to `node`. Returns true if it was the last, so that the worker does not
    /// hold the node any more.
    #[must_use]
    pub(crate) fn lose(&mut self, node: NodeId) -> bool {
        if self.more.is_empty() {
            return true;
        }
        let Some(more) = self.more.get_mut(&node) else { return true };
        *more -= 1;
        if *more == 0 {
            self.more.remove(&node);
        }
        false
    }

    /// Removes all names, and returns the nodes that were held, each once, in unspecified order.
    pub(crate) fn clear(&mut self) -> impl Iterator<Item = NodeId> + use<> {
        let Self { nodes, mut more } = std::mem::take(self);
        nodes.into_values().filter(move |node| {
            let Some(left) = more.get_mut(node) else { return true };
            *left -= 1;
            if *left == 0 {
                more.remove(node);
            }
            false
        })
    }
}
