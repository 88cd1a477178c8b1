//! Dictionary of a snapshot: the blocks that ranks hold, stored once even if several ranks hold them.

use std::ops::Range;

use hashbrown::HashMap;
use kvatlas_codec::{Cursor, put_varint, put_words};

use crate::copied::CopiedChain;
use crate::types::BlockHash;

/// Approximate number of blocks in a section of a snapshot that contains a part of the dictionary of blocks.
const BLOCKS_A_SECTION: usize = 1 << 18;
/// Largest number of stored chains that a new chain of the same run of blocks is compared with. There are more only if
/// engines use block hashes of their own.
const MOST_ALIKE: usize = 4;

/// Dictionary of a snapshot: the blocks of all chains, one chain after the other.
#[derive(Debug, Default)]
pub struct Dictionary {
    /// Block hashes of all blocks in the dictionary.
    pub names: Vec<BlockHash>,
    /// Content hashes of all blocks in the dictionary.
    pub contents: Vec<u64>,
    /// Chains of consecutive blocks, as ranges of the dictionary's blocks.
    pub chains: Vec<Entry>,
}

/// Chain of consecutive blocks in a snapshot's dictionary, as a range of the dictionary's blocks.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Index of the chain's first block in the dictionary.
    pub start: usize,
    /// Number of blocks in the chain.
    pub blocks: usize,
    /// Block hash of the block before the chain's first one; None at the start of a prompt.
    pub parent: Option<BlockHash>,
}

/// Part of a dictionary's chain that a rank holds.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    /// Index of the chain in the dictionary.
    pub entry: usize,
    /// Number of the chain's blocks before the part that the rank holds.
    pub from: usize,
    /// Number of the chain's blocks that the rank holds, consecutively.
    pub blocks: usize,
}

impl Dictionary {
    /// Parent's block hash, block hashes and content hashes of a part of a chain.
    #[must_use]
    pub fn get(&self, piece: Piece) -> (Option<BlockHash>, &[BlockHash], &[u64]) {
        let entry = self.chains[piece.entry];
        let within = Range { start: entry.start + piece.from, end: entry.start + piece.from + piece.blocks };
        let parent = if piece.from == 0 { entry.parent } else { Some(self.names[within.start - 1]) };
        (parent, &self.names[within.clone()], &self.contents[within])
    }

    /// Adds the chains in a section of kind `BLOCKS` to the dictionary.
    ///
    /// # Errors
    ///
    /// A description of what is wrong with the section.
    pub fn read(&mut self, payload: &[u8]) -> Result<(), String> {
        let mut cursor = Cursor(payload);
        // A chain has a block at least.
        let count = cursor.count(1 + 16)?;
        let first = self.names.len();
        let mut start = first;
        self.chains.reserve(count);
        for _ in 0..count {
            let said = cursor.varint()?;
            let parent = if said & 1 == 1 { Some(BlockHash(cursor.word()?)) } else { None };
            let blocks = usize::try_from(said >> 1).map_err(|_| "a number in it is too large")?;
            if blocks == 0 {
                return Err("a chain in it has no blocks".to_owned());
            }
            self.chains.push(Entry { start, blocks, parent });
            start = start.checked_add(blocks).ok_or("a number in it is too large")?;
        }
        let blocks = start - first;
        if blocks.checked_mul(16) != Some(cursor.0.len()) {
            return Err(format!("{blocks} blocks do not fit its length"));
        }
        self.names.extend(cursor.words(blocks)?.map(BlockHash));
        self.contents.extend(cursor.words(blocks)?);
        Ok(())
    }
}

/// Chain of consecutive blocks in a snapshot's dictionary that is being built.
#[derive(Debug)]
struct NewEntry {
    parent: Option<BlockHash>,
    names: Vec<BlockHash>,
    contents: Vec<u64>,
}

/// Builder of a snapshot's dictionary of the blocks that ranks hold. The dictionary is complete after the last rank was
/// added; until then it is in memory, with 16 bytes per block.
#[derive(Debug, Default)]
pub struct DictionaryWriter {
    entries: Vec<NewEntry>,
    /// Indexes of the dictionary's chains made from a run of blocks, by a flag `elsewhere` (the run belongs to another
    /// index) and the run's number.
    by_run: HashMap<(bool, u32), Vec<usize>>,
}

impl DictionaryWriter {
    /// Number of blocks in the dictionary so far.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.entries.iter().map(|entry| entry.names.len() as u64).sum()
    }

    /// Payloads of the snapshot's sections that contain the dictionary, of kind `BLOCKS`, in order.
    pub fn sections(&self) -> impl Iterator<Item = Vec<u8>> {
        let mut rest = &self.entries[..];
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let mut blocks = 0;
            let part = rest.iter().take_while(|entry| {
                let first = blocks == 0;
                blocks += entry.names.len();
                first || blocks <= BLOCKS_A_SECTION
            });
            let (part, others) = rest.split_at(part.count());
            rest = others;
            Some(section(part))
        })
    }

    /// Index of the dictionary's entry whose first blocks are those of `chain`; an entry is extended or created if
    /// needed. `elsewhere`: true if the chain's run belongs to another index than the runs of other chains.
    pub(super) fn entry(&mut self, chain: CopiedChain, elsewhere: bool) -> usize {
        let CopiedChain { run, parent, names, contents, .. } = chain;
        let alike = self.by_run.entry((elsewhere, run)).or_default();
        for &at in alike.iter() {
            let entry = &mut self.entries[at];
            let both = entry.names.len().min(names.len());
            if entry.parent == parent
                && entry.names[..both] == names[..both]
                && entry.contents[..both] == contents[..both]
            {
                entry.names.extend_from_slice(&names[both..]);
                entry.contents.extend_from_slice(&contents[both..]);
                return at;
            }
        }
        let at = self.entries.len();
        self.entries.push(NewEntry { parent, names, contents });
        if alike.len() >= MOST_ALIKE {
            alike.remove(0);
        }
        alike.push(at);
        at
    }
}

fn section(entries: &[NewEntry]) -> Vec<u8> {
    let blocks: usize = entries.iter().map(|entry| entry.names.len()).sum();
    let mut out = Vec::with_capacity(16 * blocks + 12 * entries.len() + 16);
    put_varint(&mut out, entries.len() as u64);
    for NewEntry { parent, names, .. } in entries {
        put_varint(&mut out, (names.len() as u64) << 1 | u64::from(parent.is_some()));
        put_words(&mut out, parent.map(|parent| parent.0));
    }
    entries.iter().for_each(|entry| put_words(&mut out, entry.names.iter().map(|name| name.0)));
    entries.iter().for_each(|entry| put_words(&mut out, entry.contents.iter().copied()));
    out
}
