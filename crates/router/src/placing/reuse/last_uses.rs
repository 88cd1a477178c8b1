//! Sample of blocks in the order of their last use, which gives the number of tokens used since each block's last use.

use std::collections::HashMap;

use crate::requests::sessions::KeySeed;

/// Maximum number of blocks in the sample. When it is exceeded, half of the blocks are dropped from the sample: see
/// [`LastUses::is_sampled`].
const MOST: usize = 1 << 13;

/// Maximum number of positions in the order of blocks' uses. When it is exceeded, the positions of blocks that have
/// been used again later are removed.
const POSITIONS: usize = 4 * MOST;

/// Block of a prompt that was used by a request, with its number of tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct UsedBlock {
    /// Hash of the block together with all blocks before it.
    pub(super) chain: u64,
    /// Number of tokens in the block.
    pub(super) tokens: u32,
    /// Number of tokens in the block that can come from a cache. The last token of a prompt is always computed.
    pub(super) usable: u32,
}

/// Order of the last uses of a sample of all blocks.
///
/// An LRU cache holds a block if the number of tokens used since the block's last use, its reuse distance, is below the
/// size of the cache (Mattson et al., 1970). Only blocks whose hash is below a bound are in the sample; the bound is
/// lowered as blocks increase, so that memory is bounded (fixed-size SHARDS: Waldspurger et al., FAST 2015).
#[derive(Debug)]
pub(super) struct LastUses {
    positions: HashMap<u64, u32, KeySeed>,
    /// Uses of blocks in their order, by position; a later use has a higher position.
    slots: Vec<Slot>,
    /// Fenwick tree over the token counts of `slots`, for sums over ranges of positions.
    tree: Vec<u64>,
    tokens: u64,
    halvings: u32,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    /// Hash of the block with all blocks before it; None for tokens without a hash, such as generated tokens.
    chain: Option<u64>,
    tokens: u32,
}

impl LastUses {
    /// Makes an order of blocks' uses without any use.
    pub(super) fn new() -> Self {
        Self {
            positions: HashMap::with_hasher(KeySeed::new()),
            slots: Vec::new(),
            tree: vec![0; POSITIONS + 1],
            tokens: 0,
            halvings: 0,
        }
    }

    /// Number of blocks that each block of the sample represents.
    pub(super) fn scale(&self) -> f64 {
        (self.halvings as f64).exp2()
    }

    /// True if the block with the hash `chain` is in the sample.
    pub(super) fn is_sampled(&self, chain: u64) -> bool {
        chain.leading_zeros() >= self.halvings
    }

    /// Records the use of a prompt: its sampled blocks, and `unnamed` tokens outside of blocks, whose number is already
    /// scaled to the sample. Calls `found` for each block that was used before, with its usable tokens and the size in
    /// tokens of the smallest cache that would hold it, both scaled to the sample.
    pub(super) fn use_prompt(&mut self, blocks: &[UsedBlock], unnamed: u32, mut found: impl FnMut(u32, u64)) {
        for block in blocks {
            if let Some(&position) = self.positions.get(&block.chain) {
                found(block.usable, self.tokens - self.tokens_before(position));
            }
        }
        if self.slots.len() + blocks.len() + 1 > POSITIONS {
            self.compact(0);
        }
        // As in engines the last block of a prompt goes first.
        self.push(Slot { chain: None, tokens: unnamed });
        for block in blocks.iter().rev().take(POSITIONS / 4) {
            if let Some(old) = self.positions.insert(block.chain, self.slots.len() as u32) {
                let tokens = std::mem::take(&mut self.slots[old as usize].tokens);
                self.add(old, u64::from(tokens).wrapping_neg());
            }
            self.push(Slot { chain: Some(block.chain), tokens: block.tokens });
        }
        while self.positions.len() > MOST {
            self.halvings += 1;
            self.compact(1);
        }
    }

    fn push(&mut self, slot: Slot) {
        let position = self.slots.len() as u32;
        self.slots.push(slot);
        self.add(position, u64::from(slot.tokens));
    }

    /// Adds `tokens` to the token count at a position. To subtract, pass the two's complement of the number.
    fn add(&mut self, position: u32, tokens: u64) {
        self.tokens = self.tokens.wrapping_add(tokens);
        let mut at = position as usize + 1;
        while at < self.tree.len() {
            self.tree[at] = self.tree[at].wrapping_add(tokens);
            at += at & at.wrapping_neg();
        }
    }

    /// Returns the sum of the token counts at positions before `position`.
    fn tokens_before(&self, position: u32) -> u64 {
        let (mut at, mut sum) = (position as usize, 0u64);
        while at > 0 {
            sum = sum.wrapping_add(self.tree[at]);
            at &= at - 1;
        }
        sum
    }

    /// Removes, from the order of uses, free positions and blocks that are no longer in the sample. `halved`: number of
    /// times that the sample was just halved.
    fn compact(&mut self, halved: u32) {
        let old = std::mem::take(&mut self.slots);
        self.positions.clear();
        self.tree.fill(0);
        self.tokens = 0;
        let mut unnamed = 0u64;
        for slot in old {
            match slot.chain {
                _ if slot.tokens == 0 => {}
                None => unnamed += u64::from(slot.tokens),
                Some(chain) if self.is_sampled(chain) => {
                    // Nothing is older than the first block, so nobody asks what was used before it.
                    let tokens = u32::try_from(unnamed >> halved).unwrap_or(u32::MAX);
                    if !self.slots.is_empty() && tokens > 0 {
                        self.push(Slot { chain: None, tokens });
                    }
                    unnamed = 0;
                    self.positions.insert(chain, self.slots.len() as u32);
                    self.push(Slot { chain: Some(chain), tokens: slot.tokens });
                }
                Some(_) => {}
            }
        }
        let tokens = u32::try_from(unnamed >> halved).unwrap_or(u32::MAX);
        self.push(Slot { chain: None, tokens });
    }
}
