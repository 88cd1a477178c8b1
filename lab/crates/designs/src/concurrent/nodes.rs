//! The nodes of the concurrent tree: slots that never move, each with a lock of its own.
//!
//! A reference count in each node (`Arc`) would keep nodes alive as well, but a lookup would then write to it twice at
//! every step, besides the lock. A slot can be had by its number alone. Slots are made in chunks that get larger with
//! the tree (each a sixteenth to a thirty-second of what is there) and are used again, but not given back before the
//! tree is dropped.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::interface::WorkerId;
use crate::radix::{Children, NodeId, WorkerSet};

/// Number of parents of the first blocks: several, so that prompts that have nothing in common do not meet at one lock.
pub(super) const ROOTS: NodeId = 64;

/// Number of slots in each of the first chunks, and of chunks while the number of slots doubles.
const FIRST: usize = 64;
const FINENESS: u32 = 4;
/// Number of doublings that make slots for all numbers of 32 bits.
const DOUBLINGS: usize = 23;

/// The contents of a slot, behind its lock.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) holders: WorkerSet,
    pub(super) children: Children,
    /// The content hash under which `parent` knows this node.
    pub(super) content: u64,
    pub(super) parent: NodeId,
}

impl Node {
    /// True if nobody needs the node, or the slot is not in the tree.
    pub(super) fn is_dead(&self) -> bool {
        self.holders.is_empty() && self.children.is_empty()
    }
}

/// One node, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Slot(pub(super) RwLock<Node>);

/// The slots that are not in the tree.
#[derive(Debug)]
struct FreeSlots {
    returned: Vec<NodeId>,
    /// The first slot that was never used, like all after it.
    unused: usize,
}

#[derive(Debug)]
pub(super) struct Nodes {
    chunks: Box<[OnceLock<Box<[Slot]>>]>,
    free: Mutex<FreeSlots>,
    /// A copy of `unused` in `free`, to look at without the lock.
    unused: AtomicUsize,
}

/// The chunk of a slot, and its place in the chunk. Chunks are numbered like floating point numbers: the place of the
/// leading one, then the next bits.
#[inline]
fn locate(id: NodeId) -> (usize, usize) {
    let number = id as usize + (FIRST << FINENESS);
    let shift = number.ilog2() - FINENESS;
    let chunk = ((shift - FIRST.ilog2()) << FINENESS) as usize + (number >> shift) - (1 << FINENESS);
    (chunk, number & ((1 << shift) - 1))
}

/// Number of slots in a chunk.
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

    /// Number of nodes in the tree, and of slots on the way into it or out of it.
    pub(super) fn live(&self) -> usize {
        let free = self.free.lock();
        free.unused - ROOTS as usize - free.returned.len()
    }

    /// True if a store of so many blocks may begin. Half of all numbers are kept for those that have begun: a store
    /// would have to bring two thousand million blocks to use them up.
    pub(super) fn has_room(&self, blocks: usize) -> bool {
        self.unused.load(Ordering::Relaxed) + blocks <= NodeId::MAX as usize / 2
    }

    /// Takes slots that are not in the tree.
    pub(super) fn take(&self, count: usize, ids: &mut Vec<NodeId>) {
        let mut free = self.free.lock();
        let used = free.returned.len().saturating_sub(count);
        ids.extend(free.returned.drain(used..).rev());
        let new = count - ids.len();
        ids.extend(free.unused as NodeId..(free.unused + new) as NodeId);
        free.unused += new;
        self.unused.store(free.unused, Ordering::Relaxed);
    }

    /// Gives slots back, all of them emptied.
    pub(super) fn give_back(&self, ids: &[NodeId]) {
        if ids.is_empty() {
            return;
        }
        let mut free = self.free.lock();
        free.returned.extend_from_slice(ids);
        if free.unused - ROOTS as usize == free.returned.len() {
            // Nothing is in the tree: begin again, with no list of what is free.
            self.unused.store(0, Ordering::Relaxed);
            *free = FreeSlots { returned: Vec::new(), unused: ROOTS as usize };
        }
    }
}

/// Makes a chain of nodes that is not in the tree yet, all held by `worker`; the first is to hang under `parent`.
///
/// It is made from its end, so that a slot is never empty while another leads to it: who still has an old number of
/// such a slot and looks whether it may be taken out of the tree finds it held.
pub(super) fn make_chain(nodes: &Nodes, ids: &[NodeId], contents: &[u64], parent: NodeId, worker: WorkerId) {
    let mut children = Children::None;
    for (at, (&id, &content)) in ids.iter().zip(contents).enumerate().rev() {
        let parent = if at == 0 { parent } else { ids[at - 1] };
        *nodes.at(id).write() = Node { holders: WorkerSet::only(worker), children, content, parent };
        children = Children::One(content, id);
    }
}

/// Empties a chain that was never hung into the tree, from its beginning, so that a slot is never empty while another
/// leads to it.
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
