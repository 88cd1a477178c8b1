//! Rung 4 of the ladder of index designs: a radix tree that one thread owns.
//!
//! A node is one block under its parent, with the set of workers that hold it. A lookup descends by content hash and
//! records the workers that drop out on the way: O(depth + workers) for as long as sets of holders fit into a few
//! words. Each worker has a table from its own names to the nodes that it holds, so an event finds its place without a
//! descent.
//!
//! ```text
//!            root
//!          c0 │           table of worker 0:  71 → A, 72 → B, 73 → C
//!             A {0,1,2}   table of worker 1:  71 → A, 72 → B
//!          c1 │           table of worker 2:   5 → A,  6 → D     (names are each worker's own)
//!             B {0,1}──┐
//!          c2 │        │ c9
//!             C {0}    D {2}
//! ```
//!
//! Nodes lie in one vector and refer to each other by index, so a chain of a million blocks is neither built nor freed
//! by recursion. A node without holders and children is freed at once, with the ancestors that only it had kept.
//!
//! # Holes
//! A block removed from the middle of a chain stays as a node as long as it has children. Lookups end there for the
//! worker; when it stores the block again, the blocks it still holds below count again. This is exact.
//!
//! # Differences from the reference
//! A worker's blocks are the nodes that it holds; the tree does not store which of the worker's names continued which.
//! Therefore
//! - **an orphan is refused**: a store whose parent the worker does not hold has no place in the tree. It is counted,
//!   nothing has changed, and it does not come back when the parent does. Smallest example: store 2 after 1 (unknown),
//!   store 1 at the root: depth 1, not 2.
//! - **two names of one worker for one position are one block**, held until both are removed. What continued the one
//!   continues the other. Smallest example: store 1 and 2 at the root, both with content a; store 3 after 1 with content
//!   b; remove 1. The query a b has depth 2, not 1. Engines have one name for a block.
//! - **a name that is announced elsewhere moves alone**: what continued it stays where it was, and counts there as
//!   below a hole. Smallest example: store 1 with content a and 2 after it with content b; store 1 with content x at the
//!   root. The query x b has depth 1, not 2. A name is a digest of the whole prefix in every engine, so this does not
//!   happen without a collision.
//!
//! There is no strict form. Orphans alone could be kept aside, but to be exact each worker would have to keep a tree of
//! its names beside the tree of contents, and to move parts of the one in the other: another design, the one of
//! [`kvatlas_index::BlockIndex`].

mod children;
#[cfg(test)]
pub(crate) mod testing;
mod worker_set;

use hashbrown::HashMap;
use kvatlas_index::BlockHash;

pub(super) use self::children::{Children, NodeId};
pub(super) use self::worker_set::{ActiveWorkers, WorkerSet};
use crate::interface::{LadderStats, LocalDesign, Refusal, Scores, WorkerId, check_lengths};

/// Index of the root node, at which every chain begins; it has no block and no holders.
const ROOT: NodeId = 0;

/// A node of the tree: one block under its parent, with the workers that hold it.
#[derive(Debug, Default)]
struct Node {
    holders: WorkerSet,
    children: Children,
    /// Content hash by which the parent refers to the node.
    content: u64,
    /// Index of the parent; for an unused node the index of the next unused one.
    parent: NodeId,
}

impl Node {
    /// True if the node has no holders and no children.
    fn is_dead(&self) -> bool {
        self.holders.is_empty() && self.children.is_empty()
    }
}

/// All nodes of the radix tree, with a list of the unused ones.
#[derive(Debug)]
struct Nodes {
    all: Vec<Node>,
    /// Index of the first unused node, or [`ROOT`] if there is none.
    free: NodeId,
    live: usize,
}

impl Default for Nodes {
    fn default() -> Self {
        Self { all: vec![Node::default()], free: ROOT, live: 0 }
    }
}

impl Nodes {
    /// Adds a child node with the content hash `content`, held by `worker`, to a node. Returns the child's index.
    fn grow(&mut self, parent: NodeId, content: u64, worker: WorkerId) -> NodeId {
        let node = Node { holders: WorkerSet::only(worker), children: Children::None, content, parent };
        let mut id = self.free;
        if id == ROOT {
            id = self.all.len() as NodeId;
            self.all.push(node);
        } else {
            let slot = &mut self.all[id as usize];
            self.free = slot.parent;
            *slot = node;
        }
        self.all[parent as usize].children.insert(content, id);
        self.live += 1;
        id
    }

    /// Removes `worker` from the holders of a node, and frees nodes that have no holders and no children left.
    fn leave(&mut self, worker: WorkerId, node: NodeId) {
        self.all[node as usize].holders.remove(worker);
        let mut at = node;
        while at != ROOT && self.all[at as usize].is_dead() {
            let Node { parent, content, .. } = self.all[at as usize];
            self.all[parent as usize].children.remove(content);
            self.all[at as usize] = Node { parent: self.free, ..Node::default() };
            self.free = at;
            self.live -= 1;
            at = parent;
        }
        if self.live == 0 {
            *self = Self::default();
        }
    }
}

/// A radix tree with one block per node, for one thread. See the [module](self).
#[derive(Debug, Default)]
pub struct RadixTree {
    nodes: Nodes,
    workers: HashMap<WorkerId, Names>,
    refused: u64,
    unknown_removals: u64,
}

impl RadixTree {
    /// Creates an empty radix tree.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl LocalDesign for RadixTree {
    fn store(
        &mut self,
        worker: WorkerId,
        parent: Option<BlockHash>,
        block_hashes: &[BlockHash],
        content_hashes: &[u64],
    ) -> Result<(), Refusal> {
        if let Err(refusal) = check_lengths(block_hashes, content_hashes) {
            self.refused += 1;
            return Err(refusal);
        }
        if block_hashes.is_empty() {
            return Ok(());
        }
        // All blocks may be new, and the root takes a slot.
        if block_hashes.len() > NodeId::MAX as usize - 1 - self.nodes.live {
            self.refused += 1;
            return Err(Refusal::Full { what: "it has a node for every number of 32 bits" });
        }
        let mut at = ROOT;
        if let Some(parent) = parent {
            let Some(held) = self.workers.get(&worker).and_then(|names| names.get(parent)) else {
                self.refused += 1;
                return Err(Refusal::UnknownParent { worker, parent });
            };
            at = held;
        }
        let names = self.workers.entry(worker).or_default();
        for (&name, &content) in block_hashes.iter().zip(content_hashes) {
            let (node, first) = match self.nodes.all[at as usize].children.get(content) {
                Some(node) => (node, self.nodes.all[node as usize].holders.insert(worker)),
                None => (self.nodes.grow(at, content, worker), true),
            };
            if let Some(left) = names.announce(name, node, first)
                && names.lose(left)
            {
                self.nodes.leave(worker, left);
            }
            at = node;
        }
        Ok(())
    }

    fn remove(&mut self, worker: WorkerId, block_hashes: &[BlockHash]) {
        let Some(names) = self.workers.get_mut(&worker) else {
            self.unknown_removals += block_hashes.len() as u64;
            return;
        };
        for &name in block_hashes {
            match names.end(name) {
                NameEnd::Unknown => self.unknown_removals += 1,
                NameEnd::StillHeld => {}
                NameEnd::Left(node) => self.nodes.leave(worker, node),
            }
        }
    }

    fn clear(&mut self, worker: WorkerId) {
        let Some(names) = self.workers.get_mut(&worker) else { return };
        for node in names.clear() {
            self.nodes.leave(worker, node);
        }
    }

    fn drop_worker(&mut self, worker: WorkerId) {
        self.clear(worker);
        self.workers.remove(&worker);
    }

    fn find(&self, content_hashes: &[u64], scores: &mut Scores) {
        scores.clear();
        let Some((&first, rest)) = content_hashes.split_first() else { return };
        let Some(first) = self.nodes.all[ROOT as usize].children.get(first) else { return };
        let mut at = &self.nodes.all[first as usize];
        let mut running = ActiveWorkers::new(&at.holders);
        let mut depth = 1;
        for &content in rest {
            let Some(child) = at.children.get(content) else { break };
            let child = &self.nodes.all[child as usize];
            if !running.step(&at.holders, &child.holders, depth, scores) {
                return;
            }
            at = child;
            depth += 1;
        }
        running.finish(&at.holders, depth, scores);
    }

    fn stats(&self) -> LadderStats {
        LadderStats {
            workers: self.workers.len() as u64,
            blocks: self.workers.values().map(|names| names.len() as u64).sum(),
            entries: self.nodes.live as u64,
            refused: self.refused,
            unknown_removals: self.unknown_removals,
            messages: 0,
        }
    }

    fn holdings(&self) -> Vec<(WorkerId, BlockHash)> {
        let of =
            |(&worker, names): (&WorkerId, &Names)| names.iter().map(move |name| (worker, name)).collect::<Vec<_>>();
        let mut holdings: Vec<_> = self.workers.iter().flat_map(of).collect();
        holdings.sort_unstable();
        holdings
    }
}

/// Nodes of one worker by block hash.
///
/// An engine has one block hash for a block, so a worker mostly holds a node by one. Block hashes beyond the first are
/// counted in a separate map: the worker holds the node until it has removed them all.
#[derive(Debug, Default)]
pub(super) struct Names {
    nodes: HashMap<BlockHash, NodeId>,
    more: HashMap<NodeId, u32>,
}

/// Result of removing a block hash from a worker: its effect on the tree node for which the block hash stood.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NameEnd {
    /// The worker does not know the block hash.
    Unknown,
    /// The worker still holds the node by another block hash.
    StillHeld,
    /// The worker no longer holds the given node.
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

    /// Records that the block hash `name` stands for `node` from now on. `first`: true if the worker did not hold the
    /// node before. Returns the node for which the block hash stood before, if any, to be passed to
    /// [`lose`](Self::lose).
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

    /// Removes the block hash `name` from a worker. Returns the effect on the node for which it stood.
    pub(crate) fn end(&mut self, name: BlockHash) -> NameEnd {
        let Some(node) = self.nodes.remove(&name) else { return NameEnd::Unknown };
        if self.nodes.capacity() > 64 && self.nodes.len() < self.nodes.capacity() / 8 {
            self.nodes.shrink_to(2 * self.nodes.len());
        }
        if self.lose(node) { NameEnd::Left(node) } else { NameEnd::StillHeld }
    }

    /// Records that a block hash no longer stands for `node`. Returns true if it was the last one, so that the worker
    /// does not hold the node any more.
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

    /// Removes all block hashes, and returns the nodes that the worker held, each once, in unspecified order.
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
