//! A stream as a snapshot has it, on its way into a file and out of it.

use kvatlas_adopt::{Frontier, FrontierState};
use kvatlas_index::snapshot::{Dictionary, Piece, SavedBlocks};
use kvatlas_index::{BlockHash, CopiedBlock, CopiedChain, RankCopy, UniformChain};
use kvatlas_stream::Mark;
use kvatlas_wire::{ReaderState, SaltedBlock};
use serde::{Deserialize, Serialize};

/// The state of a stream besides its blocks. Fields that a later version adds have defaults.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StreamHead {
    pub(crate) worker: String,
    /// The rank as registered.
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
    /// True if a batch has named the registered rank, or none.
    pub(crate) plain: bool,
    /// The place up to which a log was read, if the stream came by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sequence: Option<u64>,
    /// The check of the key that the contents depend on, as `Identity::key_check` has it; 0 if they depend on none.
    #[serde(default, skip_serializing_if = "is_none")]
    pub(crate) key: u32,
    pub(crate) ranks: Vec<RankHead>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde has it so")]
fn is_none(key: &u32) -> bool {
    *key == 0
}

/// The state of one rank besides its blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RankHead {
    /// The rank that blocks are stored under.
    pub(crate) rank: u32,
    /// The last batch that is in what it holds.
    pub(crate) seq: u64,
    /// True if anything was ever stored under the rank.
    pub(crate) seen: bool,
    pub(crate) decides: Option<u32>,
    pub(crate) others: Vec<u32>,
    pub(crate) several: bool,
    pub(crate) looks_ahead: bool,
    pub(crate) shows_salts: Option<bool>,
    /// The blocks that wait to become known.
    #[serde(default, skip_serializing_if = "UnnamedProofs::is_empty")]
    pub(crate) unknown: UnnamedProofs,
}

/// Names that a rank has proved without saying what they are, and what it has removed since.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UnnamedProofs {
    /// Each with the number of removals that came after its proof.
    proofs: Vec<(u64, u32)>,
    removals: Vec<u64>,
}

/// Removals, and proofs, that are kept of a rank: 0.2 MB of a head in JSON each.
const MOST_REMOVALS: usize = 8192;
const MOST_PROOFS: usize = 8192;

impl UnnamedProofs {
    pub(crate) fn of(frontier: &Frontier) -> Self {
        let FrontierState { proofs, removals } = frontier.kept(MOST_REMOVALS, MOST_PROOFS);
        let proofs = proofs.into_iter().map(|(name, ago)| (name.0, ago as u32)).collect();
        Self { proofs, removals: removals.into_iter().map(|name| name.0).collect() }
    }

    pub(crate) fn kept(&self) -> FrontierState {
        let proofs = self.proofs.iter().map(|(name, ago)| (BlockHash(*name), *ago as usize)).collect();
        FrontierState { proofs, removals: self.removals.iter().copied().map(BlockHash).collect() }
    }

    fn is_empty(&self) -> bool {
        self.proofs.is_empty()
    }
}

impl RankHead {
    pub(crate) fn new(rank: u32, seq: u64, seen: bool, reader: &ReaderState, unknown: UnnamedProofs) -> Self {
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
    pub(crate) held: RankCopy,
    pub(crate) salts: Vec<SaltedBlock>,
    /// Blocks held because the engine said so in an answer; no batch has named them since.
    pub(crate) answered: Vec<BlockHash>,
}

/// A stream, on its way into a file. Its ranks are in the order of its head's.
#[derive(Debug)]
pub(crate) struct StreamCopy {
    pub(crate) head: StreamHead,
    pub(crate) ranks: Vec<RankBlocks>,
}

/// A rank, out of a file.
#[derive(Debug, Default)]
pub(crate) struct SavedRank {
    pub(crate) held: SavedBlocks,
    pub(crate) salts: Vec<SaltedBlock>,
    pub(crate) answered: Vec<BlockHash>,
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

impl SavedStream {
    /// Blocks held: names on the device and names elsewhere, for each rank.
    pub(crate) fn blocks(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.held.blocks()).sum()
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
        let blocks = |other: &UniformChain| {
            let parents = std::iter::once(other.parent).chain(other.names.iter().copied().map(Some));
            let block = |((name, content), parent): ((&BlockHash, &u64), _)| CopiedBlock {
                name: *name,
                parent,
                content: *content,
                copies: other.copies,
            };
            other.names.iter().zip(&other.contents).zip(parents).map(block).collect::<Vec<_>>()
        };
        let rank = |rank: &SavedRank| RankBlocks {
            held: RankCopy {
                chains: rank.held.pieces.iter().map(chain).collect(),
                blocks: rank.held.others.iter().flat_map(blocks).collect(),
            },
            salts: rank.salts.clone(),
            answered: rank.answered.clone(),
        };
        StreamCopy { head: self.head.clone(), ranks: self.ranks.iter().map(rank).collect() }
    }
}
