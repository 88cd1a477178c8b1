//! Adoption of blocks that were never announced: finds the missing blocks of incomplete chains, and adds blocks that
//! are known from other sources than events.

use hashbrown::HashMap;

use super::store::Chain;
use crate::position::NO_NAME;
use crate::types::{BlockHash, Error, Tier};
use crate::writer::holders::workers::inner;
use crate::writer::state::Writer;

/// Cache of the missing blocks at which incomplete chains begin, so that a growing chain need not be walked from its
/// end each time. Each entry is verified before use.
#[derive(Debug, Default)]
pub struct Roots {
    /// Block hash of the missing block at the beginning of a chain, by the block hash of a block in that chain.
    by_name: HashMap<u64, u64>,
    /// Count of block hashes that were assigned to other blocks, as of the creation of this cache. If the count has
    /// changed, chains may have changed, too, and the entries are not used.
    replaced: u64,
}

/// Largest number of entries in the cache of missing blocks; beyond it the cache is emptied.
const MOST_ROOTS: usize = 1 << 16;

impl Roots {
    /// Removes all entries from the cache of missing blocks.
    pub fn clear(&mut self) {
        self.by_name = HashMap::new();
    }
}

/// Result of adding blocks that an engine holds for certain but has not announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Adoption {
    /// Success, with the number of blocks that were added to the rank.
    Blocks(usize),
    /// Refusal without any change, because the rank holds a block under the same block hash with another content or
    /// parent.
    Contrary,
}

impl Writer {
    /// Finds, for each block of `names`, the first missing block on the way to the beginning of its prompt; None if the
    /// chain is complete.
    ///
    /// `removed`: block hashes that were removed since the last call with the same `roots`.
    pub(crate) fn missing_above(
        &self,
        worker: &str,
        rank: u32,
        removed: &[BlockHash],
        names: &[BlockHash],
        roots: &mut Roots,
    ) -> Vec<Option<BlockHash>> {
        let Some(device) = self.known_device(worker, rank) else {
            return names.iter().copied().map(Some).collect();
        };
        let irregular = self.holders[device as usize].irregular.as_ref();
        let is_hole = |&name: &BlockHash| {
            irregular.is_some_and(|it| it.awaits(inner(name)))
                || self.branches(device).iter().any(|it| it.awaits == inner(name))
        };
        let is_old = roots.replaced != self.counters.replaced || roots.by_name.len() > MOST_ROOTS;
        if is_old || !roots.by_name.is_empty() && removed.iter().any(is_hole) {
            roots.clear();
        }
        roots.replaced = self.counters.replaced;
        names.iter().map(|&name| self.missing_from(device, inner(name), roots).map(BlockHash)).collect()
    }

    /// Holder (number of a rank's cache) for the blocks that a rank has on its device; None if the rank is unknown.
    fn known_device(&self, worker: &str, rank: u32) -> Option<u32> {
        Some(self.workers.get(self.workers.rank(worker, rank)?)?.device)
    }

    fn missing_from(&self, device: u32, name: u64, roots: &mut Roots) -> Option<u64> {
        let irregular = self.holders[device as usize].irregular.as_ref();
        let mut at = name;
        // Names may be in a circle, if an engine wants it so.
        for _ in 0..=irregular.map_or(0, |it| it.len()) + self.branches(device).len() {
            let Some(block) = irregular.and_then(|it| it.block(at)) else {
                if let Some((branch, _)) = self.find_in_branches(device, at) {
                    at = branch.awaits;
                    continue;
                }
                return if self.find(device, at).is_some() { None } else { self.note_root(name, at, roots) };
            };
            if block.at.is_some() {
                return None;
            }
            if let Some(&root) = roots.by_name.get(&at)
                && self.block(device, root).is_none()
            {
                return self.note_root(name, root, roots);
            }
            at = block.parent?;
        }
        None
    }

    fn note_root(&self, name: u64, root: u64, roots: &mut Roots) -> Option<u64> {
        if name != root {
            roots.by_name.insert(name, root);
        }
        Some(root)
    }

    /// Adds the first blocks of a prompt to a rank's device, with these block hashes and contents, except those marked
    /// as `gone`. Blocks that the rank has stay as they are. Blocks whose missing parent is among the new ones become
    /// reachable.
    ///
    /// `certain`: true if the contents are known to belong to the block hashes; then blocks whose content was a guess
    /// are corrected. If false, a block with another content makes the result [`Adoption::Contrary`].
    pub(crate) fn adopt(
        &mut self,
        worker: &str,
        rank: u32,
        chain: &Chain<'_>,
        gone: &[bool],
        certain: bool,
    ) -> Result<Adoption, Error> {
        let (names, contents) = (chain.block_hashes, chain.content_hashes);
        if let Some(rank) = self.workers.rank(worker, rank) {
            self.finish_clearing(rank);
        }
        let Some(device) = self.known_device(worker, rank) else {
            return Ok(Adoption::Contrary);
        };
        let mut wanted = Vec::with_capacity(names.len());
        for (i, (&name, &content)) in names.iter().zip(contents).enumerate() {
            let parent = i.checked_sub(1).map(|before| inner(names[before]));
            wanted.push(match self.block(device, inner(name)) {
                None => !gone.get(i).copied().unwrap_or(false),
                Some(block) if block == (parent, content) => false,
                Some((known, _)) if certain && known == parent => true,
                Some(_) => return Ok(Adoption::Contrary),
            });
        }
        let mut blocks = 0;
        let mut start = 0;
        for stretch in wanted.chunk_by(|a, b| a == b) {
            let range = start..start + stretch.len();
            start = range.end;
            if stretch[0] {
                let parent = range.start.checked_sub(1).map(|before| names[before]);
                let mut chain = Chain::new(parent, &names[range.clone()], &contents[range])?;
                self.without_copies(|writer| writer.store(&(worker, rank), Tier::Gpu, &mut chain))?;
                blocks += stretch.len();
            }
        }
        Ok(Adoption::Blocks(blocks))
    }

    /// Checks, for each block hash, if the rank has the block on its device.
    pub(crate) fn held(&self, worker: &str, rank: u32, names: &[BlockHash]) -> Vec<bool> {
        let device = self.known_device(worker, rank);
        let is_held = |&name: &BlockHash| device.is_some_and(|device| self.block(device, inner(name)).is_some());
        names.iter().map(is_held).collect()
    }

    /// Block hashes and content hashes of the chain from the beginning of a prompt to the block `name`, for block
    /// hashes that several holders (ranks' caches) share; None if no holder has the block.
    pub(crate) fn chain_of(&self, name: BlockHash) -> Option<(Vec<BlockHash>, Vec<u64>)> {
        let mut at = Some(self.find_shared(inner(name)).filter(|at| self.is_linked(*at))?);
        let (mut names, mut contents) = (Vec::new(), Vec::new());
        while let Some(position) = at {
            let name = self.runs.name(position);
            if name == NO_NAME {
                return None;
            }
            names.push(BlockHash(name));
            contents.push(self.runs.content(position));
            at = self.runs.parent(position);
        }
        names.reverse();
        contents.reverse();
        Some((names, contents))
    }

    /// True if a rank uses the shared block hashes: at least `enough` blocks that it announced have the same block
    /// hash, parent and content at other ranks, and none differs.
    pub(crate) fn agrees(&self, worker: &str, rank: u32, enough: usize) -> bool {
        let Some(books) = self.workers.rank(worker, rank).and_then(|rank| self.workers.get(rank)) else { return false };
        let device = books.device;
        let holder = &self.holders[device as usize];
        if holder.private.is_some() || holder.coming.is_some() {
            return false;
        }
        let mut pairs = 0;
        for (name, block) in holder.irregular.iter().flat_map(|irregular| irregular.blocks()) {
            // Blocks that only departing holders have are no evidence.
            if let Some(at) = self.find_shared(name).filter(|at| self.is_linked(*at)) {
                let parent = self.runs.parent(at).map(|parent| self.runs.name(parent));
                if (parent, self.runs.content(at)) != (block.parent, block.content) {
                    return false;
                }
                pairs += usize::from(!self.covers(device, at));
            }
        }
        let in_branches = self.branches(device).iter().map(|branch| (branch.number, Some(branch)));
        let parts = in_branches.chain([(device, None)]).flat_map(|(holder, branch)| {
            let mut runs = self.holders[holder as usize].runs.clone();
            runs.sort_unstable();
            runs.dedup();
            runs.into_iter().map(move |run| (holder, branch, run))
        });
        for (holder, branch, run) in parts.filter(|&(_, _, run)| self.runs.is_live(run)) {
            let mut before = branch.map_or(0, |branch| self.branch_start(branch, run));
            for level in self.runs.levels(run).iter() {
                let mut others = false;
                let is_other = |it: u32| {
                    it != device && !books.wider.contains(&Some(it)) && !self.is_leaving(it) && !self.is_hidden(it)
                };
                self.sets.members(level.set).for_each(|it| others |= is_other(it));
                if others && self.sets.contains(level.set, holder) {
                    pairs += level.end.saturating_sub(before) as usize;
                }
                before = level.end.max(before);
            }
            if pairs >= enough {
                break;
            }
        }
        pairs >= enough
    }
}
