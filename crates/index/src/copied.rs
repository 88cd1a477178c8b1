//! Copies of the blocks that ranks hold, as plain data.

use std::collections::HashMap;
use std::ops::Range;

use crate::types::{BlockHash, Event, Tier};

/// Chain of consecutive blocks of a rank that the index keeps together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopiedChain {
    /// Number of the run, the list of consecutive blocks in which the index keeps the chain. Chains of other ranks with
    /// the same number often have the same blocks, or more or fewer of them. This is only a hint, so compare the
    /// blocks.
    pub run: u32,
    /// Block hash of the block before the chain's first one; None at the start of a prompt.
    pub parent: Option<BlockHash>,
    /// Block hashes as given by the engine, in the order of the chain.
    pub names: Vec<BlockHash>,
    /// Content hash of each block.
    pub contents: Vec<u64>,
    /// Ranges of the chain's blocks that the rank holds with exactly one copy, on the device. All other blocks of the
    /// rank are in [`RankCopy::blocks`].
    pub plain: Vec<Range<usize>>,
}

/// Single block of a rank that is not part of a copied chain: after a missing block, with several copies, or on another
/// tier than the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopiedBlock {
    /// Block hash as given by the engine.
    pub name: BlockHash,
    /// Block hash of the preceding block, which need not be known; None at the start of a prompt.
    pub parent: Option<BlockHash>,
    /// Content hash of the block.
    pub content: u64,
    /// Number of copies on each tier, in the order of [`Tier::ALL`](crate::Tier::ALL). Copies on the device and copies
    /// on other tiers are in separate values.
    pub copies: [u32; 4],
}

/// Consecutive blocks of a rank with the same number of copies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UniformChain {
    /// Block hash of the block before the chain's first one, which need not be known; None at the start of a prompt.
    pub parent: Option<BlockHash>,
    /// Block hashes as given by the engine, in the order of the chain.
    pub names: Vec<BlockHash>,
    /// Content hash of each block.
    pub contents: Vec<u64>,
    /// Number of copies of each block on each tier, in the order of [`Tier::ALL`](crate::Tier::ALL).
    pub copies: [u32; 4],
}

/// Copy of the blocks that one rank held at one moment.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct RankCopy {
    /// Chains of blocks on the device with one copy each. A chain comes after the chains that it continues.
    pub chains: Vec<CopiedChain>,
    /// All blocks of the rank that are not in `chains`: first those on the device, then those on other tiers, each part
    /// sorted by block hash. A block hash may be in both parts.
    pub blocks: Vec<CopiedBlock>,
}

impl RankCopy {
    /// Groups the [`blocks`](Self::blocks) into chains that are as long as possible. Chains on the device come first,
    /// as they define the contents behind their block hashes.
    #[must_use]
    pub fn uniform_chains(&self) -> Vec<UniformChain> {
        let blocks = &self.blocks[..];
        // Those on the device and those elsewhere apart: a name may be in both.
        let is_on_device = |block: &CopiedBlock| block.copies[0] > 0;
        let places: HashMap<(BlockHash, bool), usize> =
            blocks.iter().enumerate().map(|(at, block)| ((block.name, is_on_device(block)), at)).collect();
        let mut next = vec![None; blocks.len()];
        let mut continues = vec![false; blocks.len()];
        for (at, block) in blocks.iter().enumerate() {
            let before = block.parent.and_then(|parent| places.get(&(parent, is_on_device(block))));
            if let Some(&before) = before
                && before != at
                && blocks[before].copies == block.copies
                && next[before].is_none()
            {
                (next[before], continues[at]) = (Some(at), true);
            }
        }
        let mut done = vec![false; blocks.len()];
        let mut chains = Vec::new();
        // Blocks in a cycle, which has no beginning, come last.
        let starts = (0..blocks.len()).filter(|at| !continues[*at]).chain(0..blocks.len());
        for start in starts {
            let CopiedBlock { parent, copies, .. } = blocks[start];
            let mut chain = UniformChain { parent, names: Vec::new(), contents: Vec::new(), copies };
            let mut at = Some(start);
            while let Some(here) = at.filter(|at| !done[*at]) {
                done[here] = true;
                chain.names.push(blocks[here].name);
                chain.contents.push(blocks[here].content);
                at = next[here];
            }
            if !chain.names.is_empty() {
                chains.push(chain);
            }
        }
        chains.sort_by_key(|chain| chain.copies[0] == 0);
        chains
    }

    /// Events that store the same blocks for a rank of an empty index.
    #[must_use]
    pub fn events(&self, worker: &str, rank: u32) -> Vec<Event> {
        let store = |tier, parent, names: &[BlockHash], contents: &[u64]| Event::Store {
            worker: worker.into(),
            rank,
            tier,
            parent,
            block_hashes: names.to_vec(),
            content_hashes: contents.to_vec(),
        };
        let mut events = Vec::new();
        for CopiedChain { parent, names, contents, plain, .. } in &self.chains {
            for part in plain {
                let parent = if part.start == 0 { *parent } else { Some(names[part.start - 1]) };
                events.push(store(Tier::Gpu, parent, &names[part.clone()], &contents[part.clone()]));
            }
        }
        for UniformChain { parent, names, contents, copies } in self.uniform_chains() {
            for (tier, copies) in Tier::ALL.into_iter().zip(copies) {
                events.extend((0..copies).map(|_| store(tier, parent, &names, &contents)));
            }
        }
        events
    }
}
