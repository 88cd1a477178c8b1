//! Lookups of what a holder has: by name, and by position.

use crate::position::{NO_NAME, Place, Position};
use crate::raw::Level;
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
