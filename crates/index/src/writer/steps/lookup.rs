//! Lookups of a holder's blocks: by block hash, by position (a run and an offset in it), and as chains of consecutive
//! blocks. A holder is a rank's cache; a run is a list of consecutive blocks.

use crate::position::{NO_NAME, Place, Position};
use crate::raw::Level;
use crate::writer::holders::Table;
use crate::writer::state::Writer;

impl Writer {
    /// Number of a run's first blocks that a holder (a rank's cache) has. `near`: a guess, which saves reading sets of
    /// holders that are often not in the processor's cache.
    #[inline]
    pub(in crate::writer) fn cutoff(&self, holder: u32, run: u32, near: u32) -> u32 {
        let levels = self.runs.levels(run);
        let has = |level: &&Level| self.sets.contains(level.set, holder);
        let guess = levels.iter().position(|level| level.end > near).unwrap_or(levels.len());
        // Sets shrink with depth.
        let (up, down) = (&levels[guess..], &levels[..guess]);
        let within = up.iter().take_while(has).last();
        within.or_else(|| down.iter().rev().find(has)).map_or(0, |level| level.end)
    }

    #[inline]
    pub(in crate::writer) fn covers(&self, holder: u32, at: Position) -> bool {
        let levels = self.runs.levels(at.run);
        let level = levels.iter().find(|level| level.end > at.offset);
        level.is_some_and(|level| self.sets.contains(level.set, holder))
    }

    /// Position of the regular block (stored in a run) that a holder (a rank's cache) has under this block hash; None
    /// if there is none.
    #[inline]
    pub(in crate::writer) fn find(&self, holder: u32, name: u64) -> Option<Position> {
        let it = &self.holders[holder as usize];
        if let Some(private) = &it.private {
            return private.find(name, &self.runs);
        }
        let at = self.find_shared(name)?;
        // The shared block hash is the holder's own only if the holder covers the position, and not only by irregular
        // blocks.
        (self.covers(holder, at) && !it.covers_irregularly(at)).then_some(at)
    }

    /// Position of the regular block (stored in a run) that a holder (a rank's cache) has under this block hash, and
    /// the number of the run's first blocks that it has; None if there is none.
    #[inline]
    pub(in crate::writer) fn find_cut(&self, holder: u32, name: u64) -> Option<(Position, u32)> {
        if self.holders[holder as usize].private.is_some() {
            let at = self.find(holder, name)?;
            return Some((at, self.cutoff(holder, at.run, at.offset)));
        }
        self.covered(holder, self.find_shared(name)?)
    }

    /// Position `at`, with the number of the run's first blocks that the holder (a rank's cache) has, if the holder has
    /// a regular block (stored in a run) there; None otherwise. Assumes that the holder uses the shared block hash for
    /// this position.
    #[inline]
    pub(in crate::writer) fn covered(&self, holder: u32, at: Position) -> Option<(Position, u32)> {
        let cutoff = self.cutoff(holder, at.run, at.offset);
        let is_regular = at.offset < cutoff && !self.holders[holder as usize].covers_irregularly(at);
        is_regular.then_some((at, cutoff))
    }

    /// Position of this block hash for all holders (ranks' caches) that use the shared block hashes; None if there is
    /// none.
    #[inline]
    pub(in crate::writer) fn find_shared(&self, name: u64) -> Option<Position> {
        let number = self.names.find(name, |number| Some(self.runs.name(self.runs.position(number))))?;
        Some(self.runs.position(number))
    }

    /// Block hash that a holder (a rank's cache) uses for a position at which it has a regular block (stored in a run).
    pub(in crate::writer) fn name_of(&self, holder: u32, at: Position) -> u64 {
        match &self.holders[holder as usize].private {
            Some(private) => private.name(at, &self.runs).unwrap_or(NO_NAME),
            None => self.runs.name(at),
        }
    }

    /// Parent's block hash and content hash of the regular block (stored in a run) of a holder (a rank's cache) at a
    /// position.
    pub(in crate::writer) fn block_at(&self, holder: u32, at: Position) -> (Option<u64>, u64) {
        let parent = self.runs.parent(at).map(|parent| self.name_of(holder, parent));
        (parent, self.runs.content(at))
    }

    /// Parent's block hash and content hash of the block that a holder (a rank's cache) has under this block hash; None
    /// if there is none.
    pub(in crate::writer) fn block(&self, holder: u32, name: u64) -> Option<(Option<u64>, u64)> {
        if let Some(block) = self.holders[holder as usize].irregular_block(name) {
            return Some(block);
        }
        if let Some(at) = self.find(holder, name) {
            return Some(self.block_at(holder, at));
        }
        self.find_in_branches(holder, name).map(|(_, at)| self.block_at(holder, at))
    }

    /// True if a holder (a rank's cache) has a block under this block hash, with any content.
    pub(in crate::writer) fn has_name(&self, holder: u32, name: u64) -> bool {
        self.holders[holder as usize].irregular_block(name).is_some()
            || self.find(holder, name).is_some()
            || self.find_in_branches(holder, name).is_some()
    }

    /// True if a holder (a rank's cache) has a block with this parent, block hash and content. Avoids looking up block
    /// hashes by position (run of blocks and offset), which takes long in private tables of block hashes.
    pub(in crate::writer) fn has_block(&self, holder: u32, parent: Option<u64>, name: u64, content: u64) -> bool {
        let it = &self.holders[holder as usize];
        if it.private.is_none() || it.irregular_block(name).is_some() {
            return self.block(holder, name) == Some((parent, content));
        }
        let Some(at) = self.find(holder, name) else { return false };
        let before = self.runs.parent(at);
        self.runs.content(at) == content
            && parent.is_some() == before.is_some()
            && parent.is_none_or(|parent| self.find(holder, parent) == before)
    }

    /// Number of leading block hashes that concern no irregular block (kept outside runs of blocks) and no branch
    /// (blocks after a missing block) of the holder.
    #[inline]
    pub(in crate::writer) fn regular_prefix(&self, holder: u32, names: &[u64]) -> usize {
        let it = &self.holders[holder as usize];
        if it.irregular.is_none() && it.branches.is_none() {
            return names.len();
        }
        let ignores = |name: u64| it.irregular.as_ref().is_none_or(|irregular| irregular.ignores(name));
        names.iter().take_while(|&&name| ignores(name) && !self.concerns_branches(holder, name)).count()
    }

    /// True if the holder (a rank's cache) has irregular blocks (kept outside runs of blocks) at any position of a run,
    /// so that changes there need special treatment.
    #[inline]
    pub(in crate::writer) fn is_irregular_in(&self, holder: u32, run: u32) -> bool {
        self.holders[holder as usize].irregular.as_ref().is_some_and(|irregular| irregular.is_in(run))
    }

    /// Place after the regular block (stored in a run) with the block hash `name`, or the beginning of a prompt if
    /// `name` is None. None if the holder (a rank's cache) has no such block.
    #[inline]
    pub(in crate::writer) fn place_after(&self, holder: u32, name: Option<u64>) -> Option<Place> {
        match name {
            None => Some(Place::ROOT),
            Some(name) => self.find(holder, name).map(Position::after),
        }
    }
}

/// Cost of reading a run of blocks, in steps; a step is about the work to copy one block. Reading a run, or looking up
/// a block hash (`NAME_STEPS`), waits for memory a few times.
pub(in crate::writer) const RUN_STEPS: usize = 8;
pub(in crate::writer) const NAME_STEPS: usize = 8;

/// Number of block hashes of a holder that are sorted by position (run of blocks and offset) at a time, between two
/// checks of the steps used.
const GATHERED: usize = 32;

/// Consecutive blocks of one holder (a rank's cache): parent's block hash, block hashes and content hashes.
pub(in crate::writer) struct HeldChain {
    pub(in crate::writer) parent: Option<u64>,
    pub(in crate::writer) names: Vec<u64>,
    pub(in crate::writer) contents: Vec<u64>,
}

impl Writer {
    /// Frees the tables of block hashes by position (run of blocks and offset) of these holders (ranks' caches). The
    /// tables are needed only while a rank's blocks are copied for a dump or snapshot.
    pub(in crate::writer) fn forget_places(&mut self, holders: [u32; 2]) {
        for holder in holders {
            if let Some(private) = self.holders.get_mut(holder as usize).and_then(|it| it.private.as_mut())
                && let Some(places) = private.take_places()
            {
                self.leaving.push(Table::Places(places));
            }
        }
    }

    /// Block hashes of all irregular blocks (kept outside runs of blocks) of a holder and of all blocks in its branches
    /// (blocks after missing blocks), in any order.
    pub(in crate::writer) fn names_not_in_runs(&mut self, holder: u32) -> Vec<u64> {
        let mut names = self.names_in_branches(holder);
        let irregular = self.holders[holder as usize].irregular.iter().flat_map(|irregular| irregular.blocks());
        names.extend(irregular.map(|(name, _)| name));
        names
    }

    /// All blocks of a holder, as chains: regular blocks (stored in a run) and those of branches (blocks after missing
    /// blocks), with parents before children, then irregular blocks in any order.
    pub(in crate::writer) fn chains_of(&mut self, holder: u32) -> Vec<HeldChain> {
        let mut chains = Vec::new();
        for (run, cutoff) in self.runs_of(holder) {
            chains.extend(self.chain_in(holder, run, 0, cutoff));
        }
        for branch in self.branches(holder).to_vec() {
            for (run, from, to) in self.runs_of_branch(&branch) {
                chains.push(self.chain_between(branch.number, run, from, to));
            }
        }
        let irregular = self.holders[holder as usize].irregular.iter().flat_map(|irregular| irregular.blocks());
        chains.extend(irregular.map(|(name, block)| HeldChain {
            parent: block.parent,
            names: vec![name],
            contents: vec![block.content],
        }));
        chains
    }

    /// Sorts the block hashes of a holder (a rank's cache) with a private table by position (run of blocks and offset),
    /// until `spent` reaches `steps`. Returns true if all are sorted.
    pub(in crate::writer) fn gather_places(&mut self, holder: u32, steps: usize, spent: &mut usize) -> bool {
        let Self { holders, runs, .. } = self;
        let Some(private) = &mut holders[holder as usize].private else { return true };
        if private.has_places() {
            return true;
        }
        while *spent < steps {
            *spent += GATHERED * NAME_STEPS;
            if private.gather_places(GATHERED, runs) {
                return true;
            }
        }
        false
    }

    /// Chain of the regular blocks (stored in runs) of a holder (a rank's cache) at the offsets `from..to` of a run of
    /// blocks; the holder must have all blocks there. None if the holder has only irregular blocks (kept outside runs)
    /// there.
    pub(in crate::writer) fn chain_in(&self, holder: u32, run: u32, from: u32, to: u32) -> Option<HeldChain> {
        let it = &self.holders[holder as usize];
        // Below the first position that only irregular blocks cover there is nothing regular.
        let to = if self.is_irregular_in(holder, run) {
            (0..to).find(|&offset| it.covers_irregularly(Position { run, offset })).unwrap_or(to)
        } else {
            to
        };
        if from >= to {
            return None;
        }
        let within = from as usize..to as usize;
        let names = match &it.private {
            None => &self.runs.get(run).names()[within.clone()],
            Some(private) => &private.of_run(run, &self.runs)[within.clone()],
        };
        Some(HeldChain {
            parent: self.block_at(holder, Position { run, offset: from }).0,
            names: names.to_vec(),
            contents: self.runs.get(run).contents()[within].to_vec(),
        })
    }

    /// Chain of the blocks at the offsets `from..to` of a run of blocks, for a holder (a rank's cache) that uses the
    /// shared block hashes.
    fn chain_between(&self, holder: u32, run: u32, from: u32, to: u32) -> HeldChain {
        let within = from as usize..to as usize;
        HeldChain {
            parent: self.block_at(holder, Position { run, offset: from }).0,
            names: self.runs.get(run).names()[within.clone()].to_vec(),
            contents: self.runs.get(run).contents()[within].to_vec(),
        }
    }
}
