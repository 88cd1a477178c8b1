//! Rung 3 of the ladder of index designs: an inverted index, content hash → block hash → workers, searched block by
//! block.
//!
//! One lookup per block serves all workers: the holders of the first block are active, each further block keeps its
//! holders active, and the depth of a worker is the number of blocks until it drops out. Sets of workers are sorted
//! lists, so the usual step, at which no worker drops out, is one comparison of two lists.
//!
//! Blocks are identified by content and not by position, so the index over-counts like [`nested`](super::nested):
//!
//! - *Another prefix.* A worker holds the prompts `1 2` and `3 4`. Asked for `1 4` it seems to hold both blocks; it
//!   holds one.
//! - *Repetition.* A worker holds the block `1`. Asked for `1 1 1` it seems to hold three; it holds one.
//! - *Orphans.* A worker announces block `2` as the continuation of one that it does not hold. Asked for `2` it seems
//!   to hold one; it holds none.
//! - *Holes*, if the missing block's content is elsewhere: of `1 2 1 2` the third block is removed. Asked for
//!   `1 2 1 2` it seems to hold four; it holds two.
//! - *Second names.* A worker holds `1 2` as blocks 71 and 72, and `1` once more as block 73. It removes 71, which 72
//!   continues. Asked for `1 2` it seems to hold both blocks; it holds one.
//! - *New meanings.* A worker holds `1 2` as blocks 71 and 72, announces 71 again with content `3`, and `1` as block 73.
//!   Block 72 continues 71 and so the `3`. Asked for `1 2` it seems to hold both blocks; it holds one.
//!
//! `strict` stores a block's parent with its name, and the search goes from name to name: a worker stays active only
//! through a block that continues one of the previous step's. The answers are then exact for every stream.

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::collections::SmallMap;
use crate::interface::{LadderStats, LocalDesign, Refusal, Scores, WorkerId, check_lengths};
use kvatlas_index::BlockHash;

/// An inverted index: for each content hash the blocks with this content and the workers that hold them. See the
/// [module](self).
#[derive(Debug, Default)]
pub struct InvertedIndex {
    strict: bool,
    /// Blocks and the workers that hold them, by content hash.
    by_content: HashMap<u64, SmallMap<Block, Holders>>,
    /// Content hash and parent of each block that a worker holds, by worker and block hash: evictions give only block
    /// hashes.
    workers: HashMap<WorkerId, HashMap<BlockHash, BlockInfo>>,
    entries: u64,
    refused: u64,
    unknown_removals: u64,
}

/// Identity of a block: its block hash and, if the index is strict (searches follow parents), its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Block {
    name: BlockHash,
    parent: Option<BlockHash>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockInfo {
    content: u64,
    parent: Option<BlockHash>,
}

/// Workers that hold a block, sorted.
type Holders = SmallVec<[WorkerId; 4]>;

impl InvertedIndex {
    /// Creates an empty index. `strict`: true if searches follow parents, which makes the answers exact.
    #[must_use]
    pub fn new(strict: bool) -> Self {
        Self { strict, ..Self::default() }
    }

    fn insert(&mut self, worker: WorkerId, name: BlockHash, known: BlockInfo) {
        match self.workers.entry(worker).or_default().insert(name, known) {
            Some(old) if old == known => return,
            Some(old) => self.unlink(worker, name, old),
            None => {}
        }
        let block = Block { name, parent: known.parent };
        let entries = &mut self.entries;
        let mut first = || {
            *entries += 1;
            Holders::from_slice(&[worker])
        };
        let Some(blocks) = self.by_content.get_mut(&known.content) else {
            let first = first();
            self.by_content.insert(known.content, SmallMap::One(block, first));
            return;
        };
        match blocks.get_mut(&block) {
            Some(holders) => {
                if let Err(at) = holders.binary_search(&worker) {
                    holders.insert(at, worker);
                }
            }
            None => blocks.insert(block, first()),
        }
    }

    fn unlink(&mut self, worker: WorkerId, name: BlockHash, known: BlockInfo) {
        let block = Block { name, parent: known.parent };
        let Some(blocks) = self.by_content.get_mut(&known.content) else { return };
        let Some(holders) = blocks.get_mut(&block) else { return };
        if let Ok(at) = holders.binary_search(&worker) {
            holders.remove(at);
        }
        if holders.is_empty() {
            self.entries -= 1;
            if blocks.remove(&block) {
                self.by_content.remove(&known.content);
            }
        }
    }

    fn unlink_all(&mut self, worker: WorkerId, blocks: &HashMap<BlockHash, BlockInfo>) {
        for (&name, &known) in blocks {
            self.unlink(worker, name, known);
        }
    }

    /// Searches a query by content hashes alone, and appends each worker's depth to `scores`.
    fn drain(&self, query: &[u64], scores: &mut Scores) {
        let mut active: Vec<WorkerId> = Vec::new();
        let mut stay = Vec::new();
        for (depth, content) in query.iter().enumerate() {
            stay.clear();
            let blocks = self.by_content.get(content);
            if let Some(SmallMap::One(_, holders)) = blocks
                && holders[..] == active[..]
            {
                continue;
            }
            for (_, holders) in blocks.into_iter().flat_map(SmallMap::iter) {
                if depth == 0 {
                    stay.extend_from_slice(holders);
                } else {
                    common(&active, holders, &mut stay);
                }
            }
            if !matches!(blocks, Some(SmallMap::One(..))) {
                stay.sort_unstable();
                stay.dedup();
            }
            leave(&active, &stay, depth, scores);
            std::mem::swap(&mut active, &mut stay);
            if active.is_empty() {
                return;
            }
        }
        leave(&active, &[], query.len(), scores);
    }

    /// Searches a query from block hash to block hash along parents, and appends each worker's depth to `scores`.
    fn drain_by_name(&self, query: &[u64], scores: &mut Scores) {
        let mut active: Vec<WorkerId> = Vec::new();
        let mut stay = Vec::new();
        // The matching blocks of the previous step, by name, with the workers active through each.
        let mut before: Vec<(BlockHash, Holders)> = Vec::new();
        let mut fit: Vec<(BlockHash, Holders)> = Vec::new();
        for (depth, content) in query.iter().enumerate() {
            let blocks = self.by_content.get(content);
            if let (Some(SmallMap::One(block, holders)), [(name, by)]) = (blocks, &mut before[..])
                && block.parent == Some(*name)
                && holders == by
            {
                *name = block.name;
                continue;
            }
            for (block, holders) in blocks.into_iter().flat_map(SmallMap::iter) {
                let on = match block.parent {
                    None if depth == 0 => holders.clone(),
                    Some(parent) => {
                        let Ok(at) = before.binary_search_by_key(&parent, |(name, _)| *name) else { continue };
                        let mut on = Holders::new();
                        common(&before[at].1, holders, &mut on);
                        on
                    }
                    None => continue,
                };
                if !on.is_empty() {
                    fit.push((block.name, on));
                }
            }
            join_equal_names(&mut fit);
            stay.clear();
            fit.iter().for_each(|(_, holders)| stay.extend_from_slice(holders));
            if fit.len() > 1 {
                stay.sort_unstable();
                stay.dedup();
            }
            leave(&active, &stay, depth, scores);
            std::mem::swap(&mut active, &mut stay);
            std::mem::swap(&mut before, &mut fit);
            fit.clear();
            if active.is_empty() {
                return;
            }
        }
        leave(&active, &[], query.len(), scores);
    }
}

/// Sorts blocks by block hash, and joins the holders of equal block hashes, which workers may reach from different
/// parents.
fn join_equal_names(blocks: &mut Vec<(BlockHash, Holders)>) {
    if blocks.len() < 2 {
        return;
    }
    blocks.sort_unstable_by_key(|(name, _)| *name);
    blocks.dedup_by(|(name, holders), (kept, all)| {
        if name != kept {
            return false;
        }
        all.extend_from_slice(holders);
        all.sort_unstable();
        all.dedup();
        true
    });
}

/// Appends the workers that are in both sorted lists, `active` and `holders`, to `out`, in order.
fn common(active: &[WorkerId], holders: &[WorkerId], out: &mut impl Extend<WorkerId>) {
    let (few, many) = if active.len() <= holders.len() { (active, holders) } else { (holders, active) };
    if few.len() * 8 < many.len() {
        out.extend(few.iter().copied().filter(|worker| many.binary_search(worker).is_ok()));
        return;
    }
    let mut rest = many.iter().copied().peekable();
    out.extend(few.iter().copied().filter(|&worker| {
        while rest.next_if(|&other| other < worker).is_some() {}
        rest.next_if_eq(&worker).is_some()
    }));
}

/// Appends to `scores` each worker of `active` (the workers that hold all blocks so far) that is not in `stay`, with
/// the depth `depth`.
fn leave(active: &[WorkerId], stay: &[WorkerId], depth: usize, scores: &mut Scores) {
    if active.len() == stay.len() {
        return;
    }
    let mut stay = stay.iter().copied().peekable();
    scores.extend(active.iter().filter(|&&worker| stay.next_if_eq(&worker).is_none()).map(|&w| (w, depth as u32)));
}

impl LocalDesign for InvertedIndex {
    fn store(
        &mut self,
        worker: WorkerId,
        parent: Option<BlockHash>,
        block_hashes: &[BlockHash],
        content_hashes: &[u64],
    ) -> Result<(), Refusal> {
        check_lengths(block_hashes, content_hashes).inspect_err(|_| self.refused += 1)?;
        let mut parent = parent;
        for (&name, &content) in block_hashes.iter().zip(content_hashes) {
            self.insert(worker, name, BlockInfo { content, parent: parent.filter(|_| self.strict) });
            parent = Some(name);
        }
        Ok(())
    }

    fn remove(&mut self, worker: WorkerId, block_hashes: &[BlockHash]) {
        for &name in block_hashes {
            match self.workers.get_mut(&worker).and_then(|blocks| blocks.remove(&name)) {
                Some(known) => self.unlink(worker, name, known),
                None => self.unknown_removals += 1,
            }
        }
    }

    fn clear(&mut self, worker: WorkerId) {
        if let Some(blocks) = self.workers.get_mut(&worker).map(std::mem::take) {
            self.unlink_all(worker, &blocks);
        }
    }

    fn drop_worker(&mut self, worker: WorkerId) {
        if let Some(blocks) = self.workers.remove(&worker) {
            self.unlink_all(worker, &blocks);
        }
    }

    fn find(&self, content_hashes: &[u64], scores: &mut Scores) {
        scores.clear();
        if self.strict {
            self.drain_by_name(content_hashes, scores);
        } else {
            self.drain(content_hashes, scores);
        }
    }

    fn stats(&self) -> LadderStats {
        LadderStats {
            workers: self.workers.len() as u64,
            blocks: self.workers.values().map(|blocks| blocks.len() as u64).sum(),
            entries: self.entries,
            refused: self.refused,
            unknown_removals: self.unknown_removals,
            messages: 0,
        }
    }

    fn holdings(&self) -> Vec<(WorkerId, BlockHash)> {
        let names = self.workers.iter().flat_map(|(&worker, blocks)| blocks.keys().map(move |&name| (worker, name)));
        let mut holdings: Vec<_> = names.collect();
        holdings.sort_unstable();
        holdings
    }
}
