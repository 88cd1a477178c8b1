//! What a snapshot has of a stream, on its way into a file and out of it.

use std::ops::Range;

use kvatlas_adopt::{Frontier, Kept};
use kvatlas_index::{BlockHash, CopiedBlock, CopiedChain};
use kvatlas_wire::{ReaderState, SaltedBlock};
use serde::{Deserialize, Serialize};

/// A batch, by its number and the XXH3-64 of its bytes: proves a life of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    pub(crate) seq: u64,
    pub(crate) hash: u64,
}

/// What is known of a stream besides its blocks. Fields that a later version adds have defaults.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StreamHead {
    pub(crate) worker: String,
    /// As registered.
    pub(crate) rank: u32,
    pub(crate) topic: String,
    pub(crate) count_copies: bool,
    /// The last batch before the copy began: what each rank holds goes on from here, or from its own batch below.
    pub(crate) mark: Mark,
    /// The first batch applied since the last clear.
    pub(crate) first: u64,
    pub(crate) partial: bool,
    /// Ranks that batches named, and those that they are stored under.
    pub(crate) claimed: Vec<(u32, u32)>,
    /// Whether a batch has named the registered rank, or none.
    pub(crate) plain: bool,
    /// How far a log was read, if the stream came by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sequence: Option<u64>,
    /// Which key the contents depend on, as `Identity::key_check` has it; 0 if on none.
    #[serde(default, skip_serializing_if = "is_none")]
    pub(crate) key: u32,
    pub(crate) ranks: Vec<RankHead>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde has it so")]
fn is_none(key: &u32) -> bool {
    *key == 0
}

/// What is known of one rank besides its blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RankHead {
    /// The one that blocks are stored under.
    pub(crate) rank: u32,
    /// The last batch that is in what it holds.
    pub(crate) seq: u64,
    /// Whether anything was ever stored under it.
    pub(crate) seen: bool,
    pub(crate) decides: Option<u32>,
    pub(crate) others: Vec<u32>,
    pub(crate) several: bool,
    pub(crate) looks_ahead: bool,
    pub(crate) shows_salts: Option<bool>,
    /// What waits to become known.
    #[serde(default, skip_serializing_if = "Unknown::is_empty")]
    pub(crate) unknown: Unknown,
}

/// Names that a rank has proved without saying what they are, and what it has removed since.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Unknown {
    /// Each with the number of removals that came after its proof.
    proofs: Vec<(u64, u32)>,
    removals: Vec<u64>,
}

/// Removals, and proofs, that are kept of a rank: 0.2 MB of a head in JSON each.
const MOST_REMOVALS: usize = 8192;
const MOST_PROOFS: usize = 8192;

impl Unknown {
    pub(crate) fn of(frontier: &Frontier) -> Self {
        let Kept { proofs, removals } = frontier.kept(MOST_REMOVALS, MOST_PROOFS);
        let proofs = proofs.into_iter().map(|(name, ago)| (name.0, ago as u32)).collect();
        Self { proofs, removals: removals.into_iter().map(|name| name.0).collect() }
    }

    pub(crate) fn kept(&self) -> Kept {
        let proofs = self.proofs.iter().map(|(name, ago)| (BlockHash(*name), *ago as usize)).collect();
        Kept { proofs, removals: self.removals.iter().copied().map(BlockHash).collect() }
    }

    fn is_empty(&self) -> bool {
        self.proofs.is_empty()
    }
}

impl RankHead {
    pub(crate) fn new(rank: u32, seq: u64, seen: bool, reader: &ReaderState, unknown: Unknown) -> Self {
        let ReaderState { decides, ref others, several, looks_ahead, shows_salts, salts: _ } = *reader;
        Self { rank, seq, seen, decides, others: others.clone(), several, looks_ahead, shows_salts, unknown }
    }

    pub(crate) fn reader(&self, salts: Vec<SaltedBlock>) -> ReaderState {
        let Self { decides, others, several, looks_ahead, shows_salts, .. } = self.clone();
        ReaderState { decides, others, several, looks_ahead, shows_salts, salts }
    }
}

/// A rank's blocks, on their way into a file.
#[derive(Debug, Default)]
pub(crate) struct RankBlocks {
    pub(crate) chains: Vec<CopiedChain>,
    pub(crate) blocks: Vec<CopiedBlock>,
    pub(crate) salts: Vec<SaltedBlock>,
    /// Held because the engine said so in an answer; no batch has named them since.
    pub(crate) answered: Vec<BlockHash>,
}

/// A stream, on its way into a file. Its ranks are in the order of its head's.
#[derive(Debug)]
pub(crate) struct StreamCopy {
    pub(crate) head: StreamHead,
    pub(crate) ranks: Vec<RankBlocks>,
}

/// Blocks that several ranks may hold, each once: chains, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Dictionary {
    pub(crate) names: Vec<BlockHash>,
    pub(crate) contents: Vec<u64>,
    pub(crate) chains: Vec<Entry>,
}

/// A chain in a dictionary.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) start: usize,
    pub(crate) blocks: usize,
    pub(crate) parent: Option<BlockHash>,
}

/// Blocks of a dictionary that a rank holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) entry: usize,
    pub(crate) from: usize,
    pub(crate) blocks: usize,
}

/// Blocks of one chain that are not in the dictionary, with equal numbers of copies on each tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Odd {
    pub(crate) parent: Option<BlockHash>,
    pub(crate) names: Vec<BlockHash>,
    pub(crate) contents: Vec<u64>,
    pub(crate) copies: [u32; 4],
}

/// A rank, out of a file.
#[derive(Debug, Default)]
pub(crate) struct SavedRank {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) odd: Vec<Odd>,
    pub(crate) salts: Vec<SaltedBlock>,
    pub(crate) answered: Vec<BlockHash>,
}

impl SavedRank {
    /// Blocks, each counted once for each of its copies.
    pub(crate) fn copies(&self) -> u64 {
        let of = |odd: &Odd| odd.names.len() as u64 * odd.copies.iter().map(|copies| u64::from(*copies)).sum::<u64>();
        self.pieces.iter().map(|piece| piece.blocks as u64).sum::<u64>() + self.odd.iter().map(of).sum::<u64>()
    }
}

/// A stream, out of a file.
#[derive(Debug)]
pub(crate) struct SavedStream {
    pub(crate) head: StreamHead,
    pub(crate) ranks: Vec<SavedRank>,
}

/// A keyspace, out of a file.
#[derive(Debug)]
pub(crate) struct SavedKeyspace {
    pub(crate) model: String,
    pub(crate) routing_group: String,
    pub(crate) block_size: u32,
    pub(crate) dictionary: Dictionary,
    pub(crate) streams: Vec<SavedStream>,
}

impl Dictionary {
    /// Parent, names and content hashes of a piece.
    pub(crate) fn get(&self, piece: Piece) -> (Option<BlockHash>, &[BlockHash], &[u64]) {
        let entry = self.chains[piece.entry];
        let within = Range { start: entry.start + piece.from, end: entry.start + piece.from + piece.blocks };
        let parent = if piece.from == 0 { entry.parent } else { Some(self.names[within.start - 1]) };
        (parent, &self.names[within.clone()], &self.contents[within])
    }
}

impl SavedStream {
    /// Blocks held: names on the device and names elsewhere, for each rank.
    pub(crate) fn blocks(&self) -> u64 {
        let of = |rank: &SavedRank| {
            rank.pieces.iter().map(|piece| piece.blocks as u64).sum::<u64>()
                + rank.odd.iter().map(|odd| odd.names.len() as u64).sum::<u64>()
        };
        self.ranks.iter().map(of).sum()
    }

    /// As it went into the file, to go into another one.
    pub(crate) fn to_copy(&self, dictionary: &Dictionary) -> StreamCopy {
        let chain = |piece: &Piece| {
            let (parent, names, contents) = dictionary.get(*piece);
            CopiedChain {
                run: piece.entry as u32,
                parent,
                plain: std::iter::once(0..names.len()).collect(),
                names: names.to_vec(),
                contents: contents.to_vec(),
            }
        };
        let blocks = |odd: &Odd| {
            let parents = std::iter::once(odd.parent).chain(odd.names.iter().copied().map(Some));
            let block = |((name, content), parent): ((&BlockHash, &u64), _)| CopiedBlock {
                name: *name,
                parent,
                content: *content,
                copies: odd.copies,
            };
            odd.names.iter().zip(&odd.contents).zip(parents).map(block).collect::<Vec<_>>()
        };
        let rank = |rank: &SavedRank| RankBlocks {
            chains: rank.pieces.iter().map(chain).collect(),
            blocks: rank.odd.iter().flat_map(blocks).collect(),
            salts: rank.salts.clone(),
            answered: rank.answered.clone(),
        };
        StreamCopy { head: self.head.clone(), ranks: self.ranks.iter().map(rank).collect() }
    }
}
