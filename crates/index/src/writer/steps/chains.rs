//! Chains: consecutive blocks that a holder holds.

use crate::position::Position;
use crate::writer::holders::departing::Table;
use crate::writer::state::Writer;

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
