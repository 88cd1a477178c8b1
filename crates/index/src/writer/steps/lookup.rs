//! Lookups of what a holder has: by name, by position, and as chains, which are consecutive blocks.

use crate::position::{NO_NAME, Place, Position};
use crate::raw::Level;
use crate::writer::holders::Table;
use crate::writer::state::Writer;

impl Writer {
    /// Returns how far `holder` covers a run, in blocks. `near`: a guess; to look at a set of holders is often a miss.
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

    /// Finds the regular block of this name that `holder` has.
    #[inline]
    pub(in crate::writer) fn find(&self, holder: u32, name: u64) -> Option<Position> {
        let it = &self.holders[holder as usize];
        if let Some(private) = &it.private {
            return private.find(name, &self.runs);
        }
        let at = self.find_shared(name)?;
        // The name speaks for a holder only if that covers the position, and not by irregular blocks alone.
        (self.covers(holder, at) && !it.covers_irregularly(at)).then_some(at)
    }

    /// The same, with how far it covers the run.
    #[inline]
    pub(in crate::writer) fn find_cut(&self, holder: u32, name: u64) -> Option<(Position, u32)> {
        if self.holders[holder as usize].private.is_some() {
            let at = self.find(holder, name)?;
            return Some((at, self.cutoff(holder, at.run, at.offset)));
        }
        self.covered(holder, self.find_shared(name)?)
    }

    /// A position with how far `holder` covers the run, if it has a regular block there, supposing that it calls it
    /// as the others do.
    #[inline]
    pub(in crate::writer) fn covered(&self, holder: u32, at: Position) -> Option<(Position, u32)> {
        let cutoff = self.cutoff(holder, at.run, at.offset);
        let is_regular = at.offset < cutoff && !self.holders[holder as usize].covers_irregularly(at);
        is_regular.then_some((at, cutoff))
    }

    /// The position that bears this name for all who agree on it.
    #[inline]
    pub(in crate::writer) fn find_shared(&self, name: u64) -> Option<Position> {
        let number = self.names.find(name, |number| Some(self.runs.name(self.runs.position(number))))?;
        Some(self.runs.position(number))
    }

    /// The name of a position that `holder` covers regularly.
    pub(in crate::writer) fn name_of(&self, holder: u32, at: Position) -> u64 {
        match &self.holders[holder as usize].private {
            Some(private) => private.name(at, &self.runs).unwrap_or(NO_NAME),
            None => self.runs.name(at),
        }
    }

    /// Parent and content hash of a regular block.
    pub(in crate::writer) fn block_at(&self, holder: u32, at: Position) -> (Option<u64>, u64) {
        let parent = self.runs.parent(at).map(|parent| self.name_of(holder, parent));
        (parent, self.runs.content(at))
    }

    /// Parent and content hash of a block, if `holder` has one of this name.
    pub(in crate::writer) fn block(&self, holder: u32, name: u64) -> Option<(Option<u64>, u64)> {
        if let Some(block) = self.holders[holder as usize].irregular_block(name) {
            return Some(block);
        }
        if let Some(at) = self.find(holder, name) {
            return Some(self.block_at(holder, at));
        }
        self.find_in_branches(holder, name).map(|(_, at)| self.block_at(holder, at))
    }

    /// True if `holder` has a block of this name, whatever it contains.
    pub(in crate::writer) fn has_name(&self, holder: u32, name: u64) -> bool {
        self.holders[holder as usize].irregular_block(name).is_some()
            || self.find(holder, name).is_some()
            || self.find_in_branches(holder, name).is_some()
    }

    /// True if `holder` has just this block. Asks for no name by its place, which takes long where names are a holder's
    /// own.
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

    /// Number of leading names that concern no irregular block of the holder, and no branch.
    #[inline]
    pub(in crate::writer) fn regular_prefix(&self, holder: u32, names: &[u64]) -> usize {
        let it = &self.holders[holder as usize];
        if it.irregular.is_none() && it.branches.is_none() {
            return names.len();
        }
        let ignores = |name: u64| it.irregular.as_ref().is_none_or(|irregular| irregular.ignores(name));
        names.iter().take_while(|&&name| ignores(name) && !self.concerns_branches(holder, name)).count()
    }

    /// True if irregular blocks of the holder cover any position of a run: what happens there is not plain.
    #[inline]
    pub(in crate::writer) fn is_irregular_in(&self, holder: u32, run: u32) -> bool {
        self.holders[holder as usize].irregular.as_ref().is_some_and(|irregular| irregular.is_in(run))
    }

    /// The place after a regular block, or the root for none.
    #[inline]
    pub(in crate::writer) fn place_after(&self, holder: u32, name: Option<u64>) -> Option<Place> {
        match name {
            None => Some(Place::ROOT),
            Some(name) => self.find(holder, name).map(Position::after),
        }
    }
}

/// A step is about what it takes to copy a block. To look at a run, or a name up, is to wait for memory a few times.
pub(in crate::writer) const RUN_STEPS: usize = 8;
pub(in crate::writer) const NAME_STEPS: usize = 8;

/// Names that are put by place at a time.
const GATHERED: usize = 32;

/// Consecutive blocks of one holder.
pub(in crate::writer) struct HeldChain {
    pub(in crate::writer) parent: Option<u64>,
    pub(in crate::writer) names: Vec<u64>,
    pub(in crate::writer) contents: Vec<u64>,
}

impl Writer {
    /// Names by their places, which a dump asks for, are not kept for long.
    pub(in crate::writer) fn forget_places(&mut self, holders: [u32; 2]) {
        for holder in holders {
            if let Some(private) = self.holders.get_mut(holder as usize).and_then(|it| it.private.as_mut())
                && let Some(places) = private.take_places()
            {
                self.leaving.push(Table::Places(places));
            }
        }
    }

    /// The names of all blocks of a holder that are not regular, in any order.
    pub(in crate::writer) fn names_not_in_runs(&mut self, holder: u32) -> Vec<u64> {
        let mut names = self.names_in_branches(holder);
        let irregular = self.holders[holder as usize].irregular.iter().flat_map(|irregular| irregular.blocks());
        names.extend(irregular.map(|(name, _)| name));
        names
    }

    /// All that a holder holds: regular blocks with parents before children, those of branches, too, then
    /// irregular ones in any order.
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

    /// Puts the names of a holder that has its own where they are found by place, until `spent` has come to `steps`; returns
    /// whether all are there.
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

    /// The regular blocks of a holder among the positions `from..to` of a run, which it covers.
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

    /// Some of the blocks of a run, as a holder that names them as others do has them.
    fn chain_between(&self, holder: u32, run: u32, from: u32, to: u32) -> HeldChain {
        let within = from as usize..to as usize;
        HeldChain {
            parent: self.block_at(holder, Position { run, offset: from }).0,
            names: self.runs.get(run).names()[within.clone()].to_vec(),
            contents: self.runs.get(run).contents()[within].to_vec(),
        }
    }
}
