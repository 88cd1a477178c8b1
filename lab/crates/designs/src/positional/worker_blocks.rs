//! Blocks of one worker in the positional index: its block hashes (names), the data needed to remove them, the holes at
//! which a strict search ends depths, and reports of a group's index to the top level.
//!
//! Names lead to places, since an engine removes blocks by name alone. Two names may share a place: the worker stays in
//! that place's entry until both are removed. A name announced again elsewhere has moved: the newest meaning counts.
//!
//! A strict index also keeps, for each place, its predecessor and the number of its successors. It thereby knows
//! *holes*: places that are not held although a place that continues them is. A search leaps over holes without
//! noticing; depths are cut at them afterwards, only for workers that have any.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use hashbrown::{HashMap, HashSet};
use kvatlas_index::BlockHash;
use parking_lot::RwLock;

use super::search::Query;
use super::table::{Place, Table};
use crate::interface::{Scores, WorkerId};

fn spot(place: Place) -> Spot {
    (place.position, place.prefix)
}

/// Structures of the index that a change of a worker's blocks affects, for the time of one event.
pub(crate) struct Ground<'a> {
    pub(crate) worker: WorkerId,
    pub(crate) table: &'a Table,
    pub(crate) holes: &'a Holes,
    pub(crate) coverage: Option<&'a Coverage>,
    /// True if a part of the event was reported to the top level, the table over groups of workers.
    pub(crate) told: Cell<bool>,
}

impl Ground<'_> {
    fn enter(&self, place: Place) -> bool {
        let tell = |coverage: &Coverage| self.told.set(coverage.gain(place) || self.told.get());
        self.table.insert(place, self.worker, || self.coverage.iter().copied().for_each(tell))
    }

    fn leave(&self, place: Place) {
        let tell = |coverage: &Coverage| self.told.set(coverage.lose(place) || self.told.get());
        self.table.remove(place, self.worker, || self.coverage.iter().copied().for_each(tell));
    }
}

/// Blocks of one worker, changed by one thread at a time.
#[derive(Debug)]
pub(crate) struct WorkerBlocks {
    names: HashMap<BlockHash, Place>,
    ledger: Ledger,
    /// True once the worker was removed from the index: a thread that still refers to these blocks must look the worker
    /// up again.
    pub(crate) gone: bool,
}

#[derive(Debug)]
enum Ledger {
    /// Number of a worker's block hashes for a place (position and prefix) beyond the first; only for the rare places
    /// with several.
    Plain(HashMap<Spot, u32>),
    /// All places (positions and prefixes) that the worker holds, or that a held place continues.
    Strict(HashMap<Spot, Node>),
}

#[derive(Debug)]
struct Node {
    /// Hash of the prefix that ends with the block before this one.
    before: u64,
    /// Number of the worker's block hashes for this block; 0 if the worker does not hold the block (a hole).
    names: u32,
    /// Number of recorded blocks that continue this block directly.
    children: u32,
}

impl WorkerBlocks {
    pub(crate) fn new(strict: bool) -> Self {
        let ledger = if strict { Ledger::Strict(HashMap::new()) } else { Ledger::Plain(HashMap::new()) };
        Self { names: HashMap::new(), ledger, gone: false }
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = BlockHash> {
        self.names.keys().copied()
    }

    pub(crate) fn place(&self, name: BlockHash) -> Option<Place> {
        self.names.get(&name).copied()
    }

    pub(crate) fn reserve(&mut self, more: usize) {
        self.names.reserve(more);
    }

    /// Adds a block at a place (position and content) after the prefix with the hash `before`, which the worker holds.
    pub(crate) fn store(&mut self, ground: &Ground<'_>, name: BlockHash, place: Place, before: u64) {
        let old = self.names.insert(name, place);
        if old == Some(place) {
            return;
        }
        // The new place first: the old one may be its parent.
        self.acquire(ground, place, before);
        if let Some(old) = old {
            self.release(ground, old);
        }
    }

    /// Removes the block with the block hash `name` from the worker. Returns true if the worker held a block with this
    /// block hash.
    pub(crate) fn remove(&mut self, ground: &Ground<'_>, name: BlockHash) -> bool {
        let Some(place) = self.names.remove(&name) else { return false };
        self.release(ground, place);
        if self.names.capacity() > 64 && self.names.len() < self.names.capacity() / 8 {
            self.names.shrink_to(2 * self.names.len());
        }
        true
    }

    /// Removes all blocks of the worker from the index and frees their memory.
    pub(crate) fn clear(&mut self, ground: &Ground<'_>) {
        for place in std::mem::take(&mut self.names).into_values() {
            ground.leave(place);
        }
        match &mut self.ledger {
            Ledger::Plain(extra) => *extra = HashMap::new(),
            Ledger::Strict(nodes) => *nodes = HashMap::new(),
        }
        ground.holes.forget_all(ground.worker);
    }

    fn acquire(&mut self, ground: &Ground<'_>, place: Place, before: u64) {
        let nodes = match &mut self.ledger {
            Ledger::Plain(extra) => {
                if !ground.enter(place) {
                    *extra.entry(spot(place)).or_insert(0) += 1;
                }
                return;
            }
            Ledger::Strict(nodes) => nodes,
        };
        if let Some(node) = nodes.get_mut(&spot(place)) {
            node.names += 1;
            if node.names == 1 {
                // Entered before the hole is removed: a concurrent reader gets too small a depth, never too large a
                // one.
                ground.enter(place);
                ground.holes.forget(ground.worker, spot(place));
            }
            return;
        }
        nodes.insert(spot(place), Node { before, names: 1, children: 0 });
        if let Some(above) = place.position.checked_sub(1)
            && let Some(node) = nodes.get_mut(&(above, before))
        {
            node.children += 1;
        }
        ground.enter(place);
    }

    fn release(&mut self, ground: &Ground<'_>, place: Place) {
        let nodes = match &mut self.ledger {
            Ledger::Plain(extra) => {
                match extra.get_mut(&spot(place)) {
                    None => ground.leave(place),
                    Some(1) => _ = extra.remove(&spot(place)),
                    Some(more) => *more -= 1,
                }
                return;
            }
            Ledger::Strict(nodes) => nodes,
        };
        let Some(node) = nodes.get_mut(&spot(place)) else { return };
        node.names -= 1;
        if node.names > 0 {
            return;
        }
        if node.children > 0 {
            ground.holes.note(ground.worker, spot(place));
            ground.leave(place);
            return;
        }
        ground.leave(place);
        // A place that is neither held nor continued is dropped, and perhaps its predecessor as well.
        let mut at = spot(place);
        while let Some(node) = nodes.remove(&at) {
            let Some(above) = at.0.checked_sub(1) else { break };
            at = (above, node.before);
            let Some(node) = nodes.get_mut(&at) else { break };
            node.children -= 1;
            if node.children > 0 || node.names > 0 {
                break;
            }
            ground.holes.forget(ground.worker, at);
        }
        if nodes.capacity() > 64 && nodes.len() < nodes.capacity() / 8 {
            nodes.shrink_to(2 * nodes.len());
        }
    }
}

/// Identity of a block among those of one worker: its position, and the hash of its prefix.
pub(crate) type Spot = (u32, u64);

/// Holes of all workers: blocks that a worker does not hold although it holds a continuation of them. One lock protects
/// all holes, since engines evict from the ends of chains and holes are rare.
#[derive(Debug, Default)]
pub(crate) struct Holes {
    of: RwLock<HashMap<WorkerId, HashSet<Spot>>>,
    /// Number of workers with holes (missing blocks before held ones), readable without the lock.
    workers: AtomicUsize,
}

impl Holes {
    pub(crate) fn note(&self, worker: WorkerId, spot: Spot) {
        let mut of = self.of.write();
        of.entry(worker).or_default().insert(spot);
        self.workers.store(of.len(), Ordering::Release);
    }

    pub(crate) fn forget(&self, worker: WorkerId, spot: Spot) {
        let mut of = self.of.write();
        if let Some(spots) = of.get_mut(&worker) {
            spots.remove(&spot);
            if spots.is_empty() {
                of.remove(&worker);
            }
        }
        self.workers.store(of.len(), Ordering::Release);
    }

    pub(crate) fn forget_all(&self, worker: WorkerId) {
        if !self.any() {
            return;
        }
        let mut of = self.of.write();
        of.remove(&worker);
        self.workers.store(of.len(), Ordering::Release);
    }

    pub(crate) fn any(&self) -> bool {
        self.workers.load(Ordering::Acquire) > 0
    }

    /// Reduces every worker's depth to the position of its first hole (missing block before held ones) on the query's
    /// path.
    pub(crate) fn cut(&self, query: &mut Query<'_>, scores: &mut Scores) {
        let of = self.of.read();
        scores.retain_mut(|(worker, depth)| {
            let Some(spots) = of.get(worker) else { return true };
            if spots.len() < *depth as usize {
                let before = |&&(at, prefix): &&Spot| at < *depth && query.prefix(at as usize) == prefix;
                *depth = spots.iter().filter(before).map(|&(at, _)| at).min().unwrap_or(*depth);
            } else {
                let hole = (0..*depth).find(|&at| spots.contains(&(at, query.prefix(at as usize))));
                *depth = hole.unwrap_or(*depth);
            }
            *depth > 0
        });
    }
}

/// Positions in prompts at which groups of workers report their blocks to the top-level table over the groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SparsePositions {
    /// Positions 0, 1, 3, 7, 15, …: the last blocks of the first 1, 2, 4, 8, 16, … blocks.
    Doubling,
    /// Positions 0, n, 2n, … for the given step n, which is never 0.
    Every(u32),
}

impl SparsePositions {
    /// True if groups report blocks at this position to the top-level table over the groups.
    #[must_use]
    pub fn has(self, position: u32) -> bool {
        match self {
            Self::Doubling => (u64::from(position) + 1).is_power_of_two(),
            Self::Every(step) => position.is_multiple_of(step),
        }
    }

    /// First position after `position` at which groups report blocks to the top-level table over the groups.
    pub(crate) fn after(self, position: usize) -> usize {
        match self {
            Self::Doubling => position.saturating_mul(2).saturating_add(1),
            Self::Every(step) => position.saturating_add(step as usize),
        }
    }
}

/// The top level over groups of workers: for each prefix that ends at a reported (sparse) position, the groups that
/// hold it.
#[derive(Debug)]
pub(crate) struct Top {
    pub(crate) table: Table,
    pub(crate) sparse: SparsePositions,
    /// Number of updates received by the top level (the table over groups), one for each event that changed its table.
    pub(crate) updates: AtomicU64,
}

/// Connection of one group's index to the top level, the table of the prefixes that groups of workers hold.
#[derive(Debug)]
pub(crate) struct Coverage {
    pub(crate) top: Arc<Top>,
    pub(crate) group: u32,
}

impl Coverage {
    /// Reports to the top-level table that a block has its first holder in the group of workers. Returns true if the
    /// table was changed, which happens only for blocks at reported (sparse) positions.
    pub(crate) fn gain(&self, place: Place) -> bool {
        self.top.sparse.has(place.position) && self.top.table.insert(place, self.group, || ())
    }

    /// Reports to the top-level table that a block has no holder left in the group of workers. Returns true if the
    /// table was changed, which happens only for blocks at reported (sparse) positions.
    pub(crate) fn lose(&self, place: Place) -> bool {
        self.top.sparse.has(place.position) && self.top.table.remove(place, self.group, || ())
    }
}
