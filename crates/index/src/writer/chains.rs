//! What a holder holds, as chains.

use super::state::Writer;
use crate::position::Position;

/// Consecutive blocks of one holder.
pub(super) struct HeldChain {
    pub(super) parent: Option<u64>,
    pub(super) names: Vec<u64>,
    pub(super) contents: Vec<u64>,
}

impl Writer {
    /// All that a holder holds: regular blocks with parents before children, then irregular ones in any order.
    pub(super) fn chains_of(&mut self, holder: u32) -> Vec<HeldChain> {
        let mut chains = Vec::new();
        for (run, cutoff) in self.runs_of(holder) {
            let positions = (0..cutoff).map(|offset| Position { run, offset });
            let it = &self.holders[holder as usize];
            // Below the first position that only irregular blocks cover there is nothing regular.
            let regular: Vec<_> = positions.take_while(|&at| !it.covers_irregularly(at)).collect();
            let Some(&first) = regular.first() else { continue };
            chains.push(HeldChain {
                parent: self.block_at(holder, first).0,
                names: regular.iter().map(|&at| self.name_of(holder, at)).collect(),
                contents: regular.iter().map(|&at| self.runs.content(at)).collect(),
            });
        }
        let irregular = self.holders[holder as usize].irregular.iter().flat_map(|irregular| &irregular.blocks);
        chains.extend(irregular.map(|(&name, block)| HeldChain {
            parent: block.parent,
            names: vec![name],
            contents: vec![block.content],
        }));
        chains
    }
}
