//! Recorder of the changes that a [`Reader`](crate::Reader) makes to the index, with numbers in place of block names.
//!
//! # Which names have numbers
//!
//! A name keeps its number as long as a reader of the record may hold the block, and for a while after: if the block is
//! stored again while blocks below it are still held, these must find it. A number is kept until four times as many
//! other blocks were removed as are held. If a block is stored again even later, the blocks below it count as unlinked,
//! so that depths are too small but never too large.

use std::collections::VecDeque;

use hashbrown::HashMap;
use kvatlas_codec::{put_varint, zigzag};
use kvatlas_index::{BlockHash, RankCopy, Tier};

/// Minimum number of removed blocks whose names keep their numbers.
const KEPT: usize = 1 << 16;
/// Maximum number of copies that are counted: a block with as many never counts as removed.
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
/// Head of a change that says how long a tier's chunks are, and nothing of blocks.
pub(super) const CHUNK: u8 = 1 << 7;

#[derive(Debug, Clone, Copy)]
struct BlockNumber {
    number: u64,
    /// Upper bound of the number of copies that a reader of the record holds, on each tier.
    copies: [u8; Tier::ALL.len()],
}

/// Recorder of the changes to one rank's holdings.
#[derive(Debug, Default)]
pub struct Recorder {
    names: HashMap<BlockHash, BlockNumber>,
    next: u64,
    /// Names of blocks without copies, in the order in which they lost the last copy.
    removed: VecDeque<BlockHash>,
    /// Encoded changes since they were last taken.
    out: Vec<u8>,
    /// Block number that was written last, from which the next is encoded as a difference.
    last: u64,
    scratch: Vec<u64>,
    /// Blocks in a chunk of each tier beyond the device; 0 where no length is known.
    chunks: [u32; 3],
}

impl Recorder {
    /// Makes a recorder of a rank whose chunks of each tier beyond the device have these lengths; 0 for unknown ones.
    pub(crate) fn with_chunks(chunks: [u32; 3]) -> Self {
        Self { chunks, ..Self::default() }
    }

    /// Takes the encoded changes recorded since the last call; empty if nothing changed.
    pub fn take(&mut self) -> Vec<u8> {
        self.last = 0;
        std::mem::take(&mut self.out)
    }

    /// Number of block names that have numbers.
    #[must_use]
    pub fn names(&self) -> usize {
        self.names.len()
    }

    /// Records that blocks were stored.
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

    /// Records that blocks were stored which another tier already holds.
    pub(crate) fn store_known(&mut self, tier: Tier, names: &[BlockHash], once: bool) {
        let known: Vec<BlockHash> = names.iter().copied().filter(|name| self.names.contains_key(name)).collect();
        if !known.is_empty() {
            self.head(KNOWN, tier, None, 1);
            self.numbers_of(&known, |copies| copies[tier as usize] = more(copies[tier as usize], once));
        }
    }

    /// Records that blocks were removed. `once`: whether all copies on the tier were removed.
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

    /// Records how many blocks a chunk of a tier beyond the device has.
    pub(crate) fn chunk(&mut self, tier: Tier, blocks: u32) {
        if let Some(slot) = (tier as usize).checked_sub(1) {
            self.chunks[slot] = blocks;
            self.put_chunk(tier, blocks);
        }
    }

    fn put_chunk(&mut self, tier: Tier, blocks: u32) {
        self.out.push(CHUNK | (tier as u8) << TIER_SHIFT);
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

    /// Encodes all that a rank holds as changes to an empty rank, in pieces of about `bytes` bytes, to be applied in
    /// order. Recorded changes must have been taken before.
    ///
    /// # Panics
    /// If recorded changes were not taken.
    pub fn state(&mut self, copy: &RankCopy, bytes: usize, mut piece: impl FnMut(Vec<u8>)) {
        assert!(self.out.is_empty(), "what was written down before is to be taken first");
        for (tier, blocks) in Tier::ALL.into_iter().skip(1).zip(self.chunks).filter(|(_, blocks)| *blocks > 0) {
            self.put_chunk(tier, blocks);
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

    /// Encoded changes that remove blocks which turned out not to be held.
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

    /// Writes block numbers as runs: the difference from the last number, and whether several ascend or descend by one.
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

    /// Drops the numbers of names whose blocks have been without copies for long.
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
