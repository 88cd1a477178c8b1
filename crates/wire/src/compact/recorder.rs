//! Recorder of the changes that a [`Reader`](crate::Reader) makes to the index. Recorded changes contain block numbers
//! in place of the engine's block hashes.
//!
//! # Lifetime of a block's number
//!
//! A block hash keeps its number for as long as a reader of the recorded changes may hold the block, and for some time
//! after its removal. If the block is stored again while blocks that continue its chain are still held, these find
//! their parent by the number. A number is dropped after four times as many other blocks were removed as are held. If
//! the block is stored again later, the blocks that continue its chain count as unlinked, so matched depths may be too
//! small but never too large.

use std::collections::VecDeque;

use hashbrown::HashMap;
use kvatlas_codec::{put_varint, zigzag};
use kvatlas_index::{BlockHash, RankCopy, Tier};

/// Minimum number of removed blocks whose hashes keep their numbers.
const KEPT: usize = 1 << 16;
/// Maximum number of copies that are counted. A block with this many copies counts as held until all copies are removed
/// at once.
const MANY: u8 = u8::MAX;

pub(super) const STORE: u8 = 0;
pub(super) const KNOWN: u8 = 1;
pub(super) const REMOVE: u8 = 2;
pub(super) const CLEAR: u8 = 3;
pub(super) const KIND: u8 = 3;
pub(super) const TIER_SHIFT: u8 = 2;
pub(super) const PARENT: u8 = 1 << 4;
pub(super) const ONCE: u8 = 1 << 5;
pub(super) const COPIES: u8 = 1 << 6;
/// Flag in the first byte of a change that marks a change of a tier's chunk size; no blocks follow.
pub(super) const CHUNK: u8 = 1 << 7;
/// Flag beside [`CHUNK`]: the engine only loads these chunks without a gap from the prompt's beginning.
pub(super) const GAPLESS: u8 = 1 << 5;

#[derive(Debug, Clone, Copy)]
struct BlockNumber {
    number: u64,
    /// Upper bound of the number of copies of the block, on each tier, that a reader of the recorded changes holds.
    copies: [u8; Tier::ALL.len()],
}

/// Recorder of the changes to the blocks held by one rank, in the encoding of a relay's messages (for publishing the
/// changes to other services).
#[derive(Debug, Default)]
pub struct Recorder {
    names: HashMap<BlockHash, BlockNumber>,
    next: u64,
    /// Block hashes of blocks without copies, in the order in which the blocks lost their last copies.
    removed: VecDeque<BlockHash>,
    /// Encoded changes that [`take`](Self::take) has not returned yet.
    out: Vec<u8>,
    /// Block number that was written last; the next one is encoded as a difference from it.
    last: u64,
    scratch: Vec<u64>,
    /// Number of blocks in a chunk (the unit of storage) of each tier beyond the device; 0 if unknown.
    chunks: [u32; 3],
    /// True for each tier beyond the device whose chunks the engine only loads without a gap from the prompt's beginning.
    gapless: [bool; 3],
}

impl Recorder {
    /// Creates a recorder for a rank, with the number of blocks in a chunk (the unit of storage) of each tier beyond
    /// the device, 0 if unknown; `gapless`: true if the engine only loads them without a gap from the prompt's beginning.
    pub(crate) fn with_chunks(chunks: [u32; 3], gapless: [bool; 3]) -> Self {
        Self { chunks, gapless, ..Self::default() }
    }

    /// Removes and returns the encoded changes recorded since the last call; empty if nothing changed.
    pub fn take(&mut self) -> Vec<u8> {
        self.last = 0;
        std::mem::take(&mut self.out)
    }

    /// Returns the number of block hashes that currently have numbers.
    #[must_use]
    pub fn names(&self) -> usize {
        self.names.len()
    }

    /// Records that consecutive blocks of a chain were stored on a tier.
    pub(crate) fn store(
        &mut self,
        tier: Tier,
        parent: Option<BlockHash>,
        names: &[BlockHash],
        contents: &[u64],
        once: bool,
    ) {
        self.head(STORE | if once { ONCE } else { 0 }, tier, parent, 1);
        self.numbers_of(names, |copies| copies[tier as usize] = more(copies[tier as usize], once));
        self.contents(contents);
    }

    /// Records that blocks which the rank already holds were stored on a further tier.
    pub(crate) fn store_known(&mut self, tier: Tier, names: &[BlockHash], once: bool) {
        let known: Vec<BlockHash> = names.iter().copied().filter(|name| self.names.contains_key(name)).collect();
        if !known.is_empty() {
            self.head(KNOWN, tier, None, 1);
            self.numbers_of(&known, |copies| copies[tier as usize] = more(copies[tier as usize], once));
        }
    }

    /// Records that one copy of each block was removed from a tier, or all its copies if `once` is true.
    pub(crate) fn remove(&mut self, tier: Tier, names: &[BlockHash], once: bool) {
        let mut numbers = std::mem::take(&mut self.scratch);
        numbers.clear();
        for name in names {
            let Some(it) = self.names.get_mut(name) else { continue };
            let copies = &mut it.copies[tier as usize];
            if *copies == 0 {
                continue;
            }
            if *copies != MANY || once {
                *copies = if once { 0 } else { *copies - 1 };
            }
            numbers.push(it.number);
            if it.copies == [0; Tier::ALL.len()] {
                self.removed.push_back(*name);
            }
        }
        if !numbers.is_empty() {
            self.head(REMOVE, tier, None, 1);
            self.numbers(&numbers);
        }
        self.scratch = numbers;
        self.forget();
    }

    /// Records the number of blocks in a chunk (the unit of storage) of a tier beyond the device.
    pub(crate) fn chunk(&mut self, tier: Tier, blocks: u32, is_gapless: bool) {
        if let Some(slot) = (tier as usize).checked_sub(1) {
            (self.chunks[slot], self.gapless[slot]) = (blocks, is_gapless);
            self.put_chunk(tier, blocks, is_gapless);
        }
    }

    fn put_chunk(&mut self, tier: Tier, blocks: u32, is_gapless: bool) {
        self.out.push(CHUNK | if is_gapless { GAPLESS } else { 0 } | (tier as u8) << TIER_SHIFT);
        put_varint(&mut self.out, u64::from(blocks));
    }

    /// Records that the rank has lost all blocks.
    pub(crate) fn clear(&mut self) {
        self.out.push(CLEAR);
        self.names.clear();
        self.names.shrink_to(KEPT);
        self.removed.clear();
        (self.next, self.last) = (0, 0);
    }

    /// Encodes all blocks held by a rank as changes to an empty rank. Calls `piece` with pieces of about `bytes` bytes,
    /// which must be applied in order.
    ///
    /// # Panics
    /// If recorded changes have not been fetched with [`take`](Self::take) before.
    pub fn state(&mut self, copy: &RankCopy, bytes: usize, mut piece: impl FnMut(Vec<u8>)) {
        assert!(self.out.is_empty(), "what was written down before is to be taken first");
        let chunks = self.chunks.into_iter().zip(self.gapless);
        for (tier, (blocks, is_gapless)) in Tier::ALL.into_iter().skip(1).zip(chunks).filter(|(_, it)| it.0 > 0) {
            self.put_chunk(tier, blocks, is_gapless);
        }
        let most = (bytes / 16).max(1);
        let mut flush = |recorder: &mut Self, all: bool| {
            if recorder.out.len() >= bytes || all && !recorder.out.is_empty() {
                piece(recorder.take());
            }
        };
        for chain in &copy.chains {
            for plain in &chain.plain {
                for from in plain.clone().step_by(most) {
                    let range = from..plain.end.min(from + most);
                    let parent = if from == 0 { chain.parent } else { Some(chain.names[from - 1]) };
                    self.head(STORE, Tier::Gpu, parent, 1);
                    self.numbers_of(&chain.names[range.clone()], |copies| copies[0] = copies[0].max(1));
                    self.contents(&chain.contents[range]);
                    flush(self, false);
                }
            }
        }
        for block in &copy.blocks {
            for (tier, count) in Tier::ALL.into_iter().zip(block.copies).filter(|(_, count)| *count > 0) {
                self.head(STORE, tier, block.parent, count);
                let least = u8::try_from(count).unwrap_or(MANY);
                self.numbers_of(&[block.name], |copies| copies[tier as usize] = copies[tier as usize].max(least));
                self.contents(&[block.content]);
                flush(self, false);
            }
        }
        flush(self, true);
    }

    /// Returns encoded changes that remove blocks from a tier, for blocks that were recorded but turned out not to be
    /// held.
    pub fn removed(&mut self, tier: Tier, names: &[BlockHash]) -> Vec<u8> {
        self.remove(tier, names, false);
        self.take()
    }

    fn head(&mut self, kind: u8, tier: Tier, parent: Option<BlockHash>, copies: u32) {
        let flags = if parent.is_some() { PARENT } else { 0 } | if copies == 1 { 0 } else { COPIES };
        self.out.push(kind | (tier as u8) << TIER_SHIFT | flags);
        if copies != 1 {
            put_varint(&mut self.out, u64::from(copies));
        }
        if let Some(parent) = parent {
            let is_new = !self.names.contains_key(&parent);
            let number = self.number(parent, |_| {});
            if is_new {
                // No reader knows the block, so there is nothing to remove.
                self.removed.push_back(parent);
            }
            put_varint(&mut self.out, zigzag(self.last, number));
            self.last = number;
        }
    }

    fn number(&mut self, name: BlockHash, count: impl FnOnce(&mut [u8; Tier::ALL.len()])) -> u64 {
        let next = self.next;
        let it = self.names.entry(name).or_insert(BlockNumber { number: next, copies: [0; Tier::ALL.len()] });
        count(&mut it.copies);
        self.next += u64::from(it.number == next);
        it.number
    }

    fn numbers_of(&mut self, names: &[BlockHash], count: impl Fn(&mut [u8; Tier::ALL.len()])) {
        let mut numbers = std::mem::take(&mut self.scratch);
        numbers.clear();
        numbers.extend(names.iter().map(|name| self.number(*name, &count)));
        self.numbers(&numbers);
        self.scratch = numbers;
    }

    /// Writes block numbers as runs of numbers that ascend or descend by one. A run is encoded by the difference of its
    /// first number from the last number written, its length and its direction.
    fn numbers(&mut self, numbers: &[u64]) {
        put_varint(&mut self.out, numbers.len() as u64);
        let mut rest = numbers;
        while let Some((&first, others)) = rest.split_first() {
            let step = match others.first() {
                Some(&second) if second == first + 1 => 1,
                Some(&second) if second.wrapping_add(1) == first => u64::MAX,
                _ => 0,
            };
            let follows = |at: &usize| rest[*at] == rest[*at - 1].wrapping_add(step);
            let run = if step == 0 { 1 } else { 1 + (1..rest.len()).take_while(follows).count() };
            // The difference has one bit less than 64, as no number is that high.
            put_varint(&mut self.out, zigzag(self.last, first) << 1 | u64::from(run > 1));
            if run > 1 {
                put_varint(&mut self.out, (run as u64 - 2) << 1 | u64::from(step != 1));
            }
            self.last = rest[run - 1];
            rest = &rest[run..];
        }
    }

    fn contents(&mut self, contents: &[u64]) {
        self.out.reserve(8 * contents.len());
        contents.iter().for_each(|content| self.out.extend(content.to_le_bytes()));
    }

    /// Drops the numbers of the blocks that were removed longest ago, once there are too many removed blocks.
    fn forget(&mut self) {
        while self.removed.len() > KEPT.max(self.names.len().saturating_sub(self.removed.len()) * 4) {
            let Some(name) = self.removed.pop_front() else { return };
            if self.names.get(&name).is_some_and(|it| it.copies == [0; Tier::ALL.len()]) {
                self.names.remove(&name);
            }
        }
    }
}

fn more(copies: u8, once: bool) -> u8 {
    if once { copies.max(1) } else { copies.saturating_add(1) }
}
