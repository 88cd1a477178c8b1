//! What a holder holds, as chains.

use super::leaving::Table;
use super::state::Writer;
use crate::position::Position;

/// Consecutive blocks of one holder.
pub(super) struct HeldChain {
    pub(super) parent: Option<u64>,
    pub(super) names: Vec<u64>,
    pub(super) contents: Vec<u64>,
}

impl Writer {
    /// Names by their places, which a dump asks for, are not kept for long.
    pub(super) fn forget_places(&mut self, holders: [u32; 2]) {
        for holder in holders {
            if let Some(private) = self.holders.get_mut(holder as usize).and_then(|it| it.private.as_mut())
                && let Some(places) = private.take_places()
            {
                self.leaving.push(Table::Places(places));
            }
        }
    }

    /// All that a holder holds: regular blocks with parents before children, those of branches, too, then
    /// irregular ones in any order.
    pub(super) fn chains_of(&mut self, holder: u32) -> Vec<HeldChain> {
        let mut chains = Vec::new();
        for (run, cutoff) in self.runs_of(holder) {
            chains.extend(self.chain_in(holder, run, cutoff));
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

    /// The regular blocks of a holder in a run of which it covers the first `cutoff`.
    pub(super) fn chain_in(&self, holder: u32, run: u32, cutoff: u32) -> Option<HeldChain> {
        let first = Position { run, offset: 0 };
        let it = &self.holders[holder as usize];
        // Below the first position that only irregular blocks cover there is nothing regular.
        let regular = match &it.irregular {
            None => cutoff,
            Some(_) => (0..cutoff).find(|&offset| it.covers_irregularly(Position { run, offset })).unwrap_or(cutoff),
        };
        let within = ..regular as usize;
        let names = match &it.private {
            None => &self.runs.get(run).names()[within],
            Some(private) => &private.of_run(run, &self.runs)[within],
        };
        let contents = &self.runs.get(run).contents()[within];
        (regular > 0).then(|| HeldChain {
            parent: self.block_at(holder, first).0,
            names: names.to_vec(),
            contents: contents.to_vec(),
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
