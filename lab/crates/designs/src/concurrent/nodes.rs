//! Nodes of the concurrent radix tree: slots that never move, each with a lock.
//!
//! A reference count in each node (`Arc`) would keep nodes alive as well, but a lookup would then write to it twice at
//! every step, besides the lock. A slot is addressed by its number alone. Slots are allocated in chunks that grow with
//! the tree (each a sixteenth to a thirty-second of the existing slots) and are reused, but not freed before the tree
//! is dropped.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::interface::WorkerId;
use crate::radix::{Children, NodeId, WorkerSet};

/// Number of root nodes, under which first blocks are: several, so that unrelated prompts do not contend for one lock.
pub(super) const ROOTS: NodeId = 64;

/// Number of slots (places for tree nodes) in each of the first chunks, the pieces of memory that are allocated one by
/// one.
const FIRST: usize = 64;
const FINENESS: u32 = 4;
/// Number of times that the number of slots (places for tree nodes) doubles until all 32-bit node numbers are used.
const DOUBLINGS: usize = 23;

/// A node of the tree, as stored in a slot behind the slot's lock.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) holders: WorkerSet,
    pub(super) children: Children,
    /// Content hash by which the parent refers to the node.
    pub(super) content: u64,
    pub(super) parent: NodeId,
}

impl Node {
    /// True if the node has no holders and no children, or is not in the tree.
    pub(super) fn is_dead(&self) -> bool {
        self.holders.is_empty() && self.children.is_empty()
    }
}

/// A slot, the place for one tree node and its lock, on a separate cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Slot(pub(super) RwLock<Node>);

/// Slots (places for tree nodes) that contain no node.
#[derive(Debug)]
struct FreeSlots {
    returned: Vec<NodeId>,
    /// Number of the first slot (place for a tree node) that was never used; all later slots were not used either.
    unused: usize,
}

#[derive(Debug)]
pub(super) struct Nodes {
    chunks: Box<[OnceLock<Box<[Slot]>>]>,
    free: Mutex<FreeSlots>,
    /// Number of the first slot (place for a tree node) that was never used: a copy of `unused` in `free`, readable
    /// without the lock.
    unused: AtomicUsize,
}

/// Chunk (piece of memory) that contains the slot of the node `id`, and the slot's index in the chunk. Chunks are
/// numbered like floating point numbers: by the position of the leading one bit, then the next bits.
#[inline]
fn locate(id: NodeId) -> (usize, usize) {
    let number = id as usize + (FIRST << FINENESS);
    let shift = number.ilog2() - FINENESS;
    let chunk = ((shift - FIRST.ilog2()) << FINENESS) as usize + (number >> shift) - (1 << FINENESS);
    (chunk, number & ((1 << shift) - 1))
}

/// Number of slots (places for tree nodes) in a chunk, a piece of memory that is allocated at once.
fn chunk_size(chunk: usize) -> usize {
    FIRST << (chunk >> FINENESS)
}

impl Nodes {
    pub(super) fn new() -> Self {
        let chunks = (0..DOUBLINGS << FINENESS).map(|_| OnceLock::new()).collect();
        let free = Mutex::new(FreeSlots { returned: Vec::new(), unused: ROOTS as usize });
        Self { chunks, free, unused: AtomicUsize::new(0) }
    }

    #[inline]
    pub(super) fn at(&self, id: NodeId) -> &RwLock<Node> {
        let (chunk, offset) = locate(id);
        let slots = self.chunks[chunk].get_or_init(|| (0..chunk_size(chunk)).map(|_| Slot::default()).collect());
        &slots[offset].0
    }

    /// Number of nodes in the tree, including those that are being added or removed.
    pub(super) fn live(&self) -> usize {
        let free = self.free.lock();
        free.unused - ROOTS as usize - free.returned.len()
    }

    /// True if there are enough free slots (places for tree nodes) to begin a store of `blocks` blocks. Half of all
    /// numbers are reserved for stores that have begun: a single store would need two thousand million blocks to
    /// exhaust them.
    pub(super) fn has_room(&self, blocks: usize) -> bool {
        self.unused.load(Ordering::Relaxed) + blocks <= NodeId::MAX as usize / 2
    }

    /// Removes `count` slots (places for tree nodes) from the free ones, and appends their numbers to `ids`.
    pub(super) fn take(&self, count: usize, ids: &mut Vec<NodeId>) {
        let mut free = self.free.lock();
        let used = free.returned.len().saturating_sub(count);
        ids.extend(free.returned.drain(used..).rev());
        let new = count - ids.len();
        ids.extend(free.unused as NodeId..(free.unused + new) as NodeId);
        free.unused += new;
        self.unused.store(free.unused, Ordering::Relaxed);
    }

    /// Adds emptied slots (places for tree nodes) to the free ones.
    pub(super) fn give_back(&self, ids: &[NodeId]) {
        if ids.is_empty() {
            return;
        }
        let mut free = self.free.lock();
        free.returned.extend_from_slice(ids);
        if free.unused - ROOTS as usize == free.returned.len() {
            // The tree is empty: all slots count as never used again, without a list.
            self.unused.store(0, Ordering::Relaxed);
            *free = FreeSlots { returned: Vec::new(), unused: ROOTS as usize };
        }
    }
}

/// Creates a chain of nodes outside the tree, all held by `worker`. The first node will be linked under `parent`.
///
/// The chain is created from its end, so that a slot is never empty while another links to it: a thread with an
/// outdated number of the slot, which checks whether the node can be removed from the tree, finds that it is held.
pub(super) fn make_chain(nodes: &Nodes, ids: &[NodeId], contents: &[u64], parent: NodeId, worker: WorkerId) {
    let mut children = Children::None;
    for (at, (&id, &content)) in ids.iter().zip(contents).enumerate().rev() {
        let parent = if at == 0 { parent } else { ids[at - 1] };
        *nodes.at(id).write() = Node { holders: WorkerSet::only(worker), children, content, parent };
        children = Children::One(content, id);
    }
}

/// Empties the slots (places for tree nodes) of a chain that was never linked into the tree, from its beginning, so
/// that a slot is never empty while another slot refers to it.
pub(super) fn unmake_chain(nodes: &Nodes, ids: &[NodeId]) {
    for &id in ids {
        *nodes.at(id).write() = Node::default();
    }
    nodes.give_back(ids);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_follow_each_other() {
        assert_eq!(size_of::<Slot>(), 64);
        let (mut chunk, mut offset) = (0, 0);
        for id in 0..300_000 {
            assert_eq!(locate(id), (chunk, offset), "slot {id}");
            offset += 1;
            if offset == chunk_size(chunk) {
                (chunk, offset) = (chunk + 1, 0);
            }
        }
    }
}
