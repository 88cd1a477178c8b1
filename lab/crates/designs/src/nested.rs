//! Rung 1 of the ladder of index designs: worker → content hash → block hashes, and a lookup that asks each worker for
//! each block.
//!
//! The simplest design. A lookup costs O(workers × depth) for any holdings, since the workers' dictionaries are
//! independent. The dictionary identifies a block by its content, and does not know its position in a prompt. These
//! answers are therefore wrong, each an over-count (`strict` corrects them all):
//!
//! - *Another prefix.* A worker holds the prompts `1 2` and `3 4`. Asked for `1 4` it seems to hold both blocks; it
//!   holds one.
//! - *Repetition.* A worker holds the block `1`. Asked for `1 1 1` it seems to hold three; it holds one.
//! - *Orphans.* A worker announces block `2` as the continuation of one that it does not hold. Asked for `2` it seems
//!   to hold one; it holds none until the chain to the root is complete.
//! - *Holes*, if the missing block's content is elsewhere: of `1 2 1 2` the third block is removed. Asked for
//!   `1 2 1 2` it seems to hold four; it holds two.
//! - *Second names.* A worker holds `1 2` as blocks 71 and 72, and `1` once more as block 73. It removes 71, which 72
//!   continues. Asked for `1 2` it seems to hold both blocks; it holds one.
//! - *New meanings.* A worker holds `1 2` as blocks 71 and 72, announces 71 again with content `3`, and `1` as block 73.
//!   Block 72 continues 71 and so the `3`. Asked for `1 2` it seems to hold both blocks; it holds one.
//!
//! `strict` follows names: a block counts if its content matches *and* its parent is one of the previous step's
//! matches. It is the same dictionary, with each block's parent beside its name. Its answers are exact for every
//! stream, and its lookups cost the same unless a content repeats often within one worker.

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::collections::SmallMap;
use crate::interface::{LadderStats, LocalDesign, Refusal, Scores, WorkerId, check_lengths};
use kvatlas_index::BlockHash;

/// A nested dictionary: worker → content hash → block hashes. See the [module](self).
#[derive(Debug, Default)]
pub struct NestedMap {
    strict: bool,
    workers: HashMap<WorkerId, Worker>,
    refused: u64,
    unknown_removals: u64,
}

#[derive(Debug, Default)]
struct Worker {
    /// Parents of the worker's blocks, by content hash and block hash.
    by_content: HashMap<u64, SmallMap<BlockHash, Option<BlockHash>>>,
    /// Content hashes of the worker's blocks by block hash: evictions give only block hashes.
    contents: HashMap<BlockHash, u64>,
}

impl NestedMap {
    /// Creates an empty dictionary. `strict`: true if lookups follow parents, which makes the answers exact.
    #[must_use]
    pub fn new(strict: bool) -> Self {
        Self { strict, ..Self::default() }
    }
}

impl Worker {
    fn insert(&mut self, name: BlockHash, parent: Option<BlockHash>, content: u64) {
        if let Some(old) = self.contents.insert(name, content)
            && old != content
        {
            self.unlink(old, name);
        }
        self.by_content
            .entry(content)
            .and_modify(|names| names.insert(name, parent))
            .or_insert_with(|| SmallMap::One(name, parent));
    }

    fn remove(&mut self, name: BlockHash) -> bool {
        let Some(content) = self.contents.remove(&name) else { return false };
        self.unlink(content, name);
        true
    }

    fn unlink(&mut self, content: u64, name: BlockHash) {
        if self.by_content.get_mut(&content).is_some_and(|names| names.remove(&name)) {
            self.by_content.remove(&content);
        }
    }

    fn depth(&self, query: &[u64]) -> usize {
        query.iter().take_while(|content| self.by_content.contains_key(*content)).count()
    }

    fn strict_depth(&self, query: &[u64]) -> usize {
        // The matching names of the previous step, sorted: nearly always one.
        let mut before: SmallVec<[Option<BlockHash>; 4]> = SmallVec::from_slice(&[None]);
        let mut fit = SmallVec::new();
        for (depth, content) in query.iter().enumerate() {
            let names = self.by_content.get(content).into_iter().flat_map(SmallMap::iter);
            fit.extend(names.filter(|(_, parent)| before.binary_search(parent).is_ok()).map(|(&name, _)| Some(name)));
            if fit.is_empty() {
                return depth;
            }
            fit.sort_unstable();
            std::mem::swap(&mut before, &mut fit);
            fit.clear();
        }
        query.len()
    }
}

impl LocalDesign for NestedMap {
    fn store(
        &mut self,
        worker: WorkerId,
        parent: Option<BlockHash>,
        block_hashes: &[BlockHash],
        content_hashes: &[u64],
    ) -> Result<(), Refusal> {
        check_lengths(block_hashes, content_hashes).inspect_err(|_| self.refused += 1)?;
        if block_hashes.is_empty() {
            return Ok(());
        }
        let worker = self.workers.entry(worker).or_default();
        let mut parent = parent;
        for (&name, &content) in block_hashes.iter().zip(content_hashes) {
            worker.insert(name, parent, content);
            parent = Some(name);
        }
        Ok(())
    }

    fn remove(&mut self, worker: WorkerId, block_hashes: &[BlockHash]) {
        let mut worker = self.workers.get_mut(&worker);
        for &name in block_hashes {
            let known = worker.as_mut().is_some_and(|worker| worker.remove(name));
            self.unknown_removals += u64::from(!known);
        }
    }

    fn clear(&mut self, worker: WorkerId) {
        if let Some(worker) = self.workers.get_mut(&worker) {
            *worker = Worker::default();
        }
    }

    fn drop_worker(&mut self, worker: WorkerId) {
        self.workers.remove(&worker);
    }

    fn find(&self, content_hashes: &[u64], scores: &mut Scores) {
        scores.clear();
        for (&number, worker) in &self.workers {
            let depth = if self.strict { worker.strict_depth(content_hashes) } else { worker.depth(content_hashes) };
            if depth > 0 {
                scores.push((number, depth as u32));
            }
        }
    }

    fn stats(&self) -> LadderStats {
        LadderStats {
            workers: self.workers.len() as u64,
            blocks: self.workers.values().map(|worker| worker.contents.len() as u64).sum(),
            entries: self.workers.values().map(|worker| worker.by_content.len() as u64).sum(),
            refused: self.refused,
            unknown_removals: self.unknown_removals,
            messages: 0,
        }
    }

    fn holdings(&self) -> Vec<(WorkerId, BlockHash)> {
        let names =
            self.workers.iter().flat_map(|(&number, worker)| worker.contents.keys().map(move |&name| (number, name)));
        let mut holdings: Vec<_> = names.collect();
        holdings.sort_unstable();
        holdings
    }
}
