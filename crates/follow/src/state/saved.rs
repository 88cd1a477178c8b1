//! Blocks held by a stream's ranks, as copied out of the index by the stream's task, and as read from a snapshot.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use kvatlas_adopt::{Frontier, FrontierState};
use kvatlas_index::snapshot::{Dictionary, Piece, SavedBlocks};
use kvatlas_index::{BlockHash, CopiedBlock, CopiedChain, CopyDone, RankCopy, SavedPool, UniformChain};
use kvatlas_stream::{Mark, Skip};
use kvatlas_wire::{ReaderState, SaltedBlock};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

/// State of a stream in a snapshot, except for its blocks. Fields added in later versions must have defaults.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StreamHead {
    pub(crate) worker: String,
    /// Data-parallel rank for which the stream is registered.
    pub(crate) rank: u32,
    pub(crate) topic: String,
    pub(crate) count_copies: bool,
    /// Mark (number and hash) of the last batch applied before the copy began. After loading, each rank continues with
    /// the batches after this one, or after the rank's own last batch if that is later.
    pub(crate) mark: Mark,
    /// Number of the first batch applied since the stream's held blocks were last cleared.
    pub(crate) first: u64,
    pub(crate) partial: bool,
    /// Ranks named in batches, each with the rank under which its blocks are stored.
    pub(crate) claimed: Vec<(u32, u32)>,
    /// True if any batch has named the registered rank, or no rank.
    pub(crate) plain: bool,
    /// Sequence number up to which the NATS log was read; `None` if the stream was read from an engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sequence: Option<u64>,
    /// Check value that identifies the secret key which content hashes depend on (`Identity::key_check`); 0 without a
    /// key.
    #[serde(default, skip_serializing_if = "is_none")]
    pub(crate) key: u32,
    pub(crate) ranks: Vec<RankHead>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde has it so")]
fn is_none(key: &u32) -> bool {
    *key == 0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde has it so")]
fn is_false(flag: &bool) -> bool {
    !flag
}

fn are_unknown(chunks: &[u32; 3]) -> bool {
    *chunks == [0; 3]
}

/// State of one rank in a snapshot, except for its blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RankHead {
    /// Data-parallel rank under which the blocks are stored in the index.
    pub(crate) rank: u32,
    /// Number of the last batch that the rank's blocks include.
    pub(crate) seq: u64,
    /// True if a block was ever stored under this rank.
    pub(crate) seen: bool,
    pub(crate) decides: Option<u32>,
    pub(crate) others: Vec<u32>,
    pub(crate) several: bool,
    pub(crate) looks_ahead: bool,
    pub(crate) shows_salts: Option<bool>,
    /// True if the engine has a connector (a plug-in that moves KV to host memory or other tiers) that announces clears
    /// of its own tiers.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) clears_host: bool,
    /// Number of blocks in a chunk (the unit of storage) of each tier beyond the device; 0 if unknown.
    #[serde(default, skip_serializing_if = "are_unknown")]
    pub(crate) chunks: [u32; 3],
    /// Number of blocks in a chunk that a connector stores under one block hash of its own, for each tier beyond the
    /// device; 0 where no connector does.
    #[serde(default, skip_serializing_if = "are_unknown")]
    pub(crate) own_chunks: [u32; 3],
    /// True if any block on the device has had a LoRA adapter or a cache salt.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) has_keys: bool,
    /// Block hashes on tiers beyond the device whose contents the engine has not announced yet, each with its number of
    /// copies on each tier.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) undescribed: Vec<(u64, [u32; 3])>,
    /// Block hashes that the rank was proved to hold and whose contents are unknown.
    #[serde(default, skip_serializing_if = "UnnamedProofs::is_empty")]
    pub(crate) unknown: UnnamedProofs,
}

/// Block hashes that a rank was proved to hold although no batch announced the blocks, and the block hashes that it has
/// removed since.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UnnamedProofs {
    /// Block hashes proved to be held, each with the number of blocks removed after the proof.
    proofs: Vec<(u64, u32)>,
    /// Block hashes of the blocks that the rank removed last, oldest first.
    removals: Vec<u64>,
}

/// Maximum number of removed blocks' hashes that are saved per rank: up to 0.2 MB of JSON in a snapshot.
const MOST_REMOVALS: usize = 8192;
/// Maximum number of hashes of blocks proved to be held that are saved per rank: up to 0.2 MB of JSON in a snapshot.
const MOST_PROOFS: usize = 8192;
/// Maximum number of block hashes with unknown contents, on tiers beyond the device, that are saved per rank.
const MOST_UNDESCRIBED: usize = 8192;

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
        let ReaderState {
            decides, several, looks_ahead, shows_salts, clears_host, chunks, own_chunks, has_keys, ..
        } = *reader;
        let others = reader.others.clone();
        let last = reader.undescribed.len().saturating_sub(MOST_UNDESCRIBED);
        let undescribed = reader.undescribed[last..].iter().map(|(name, copies)| (name.0, *copies)).collect();
        Self {
            rank,
            seq,
            seen,
            decides,
            others,
            several,
            looks_ahead,
            shows_salts,
            clears_host,
            chunks,
            own_chunks,
            has_keys,
            undescribed,
            unknown,
        }
    }

    pub(crate) fn reader(&self, salts: Vec<SaltedBlock>) -> ReaderState {
        ReaderState {
            decides: self.decides,
            others: self.others.clone(),
            several: self.several,
            looks_ahead: self.looks_ahead,
            shows_salts: self.shows_salts,
            clears_host: self.clears_host,
            chunks: self.chunks,
            own_chunks: self.own_chunks,
            has_keys: self.has_keys,
            undescribed: self.undescribed.iter().map(|(name, copies)| (BlockHash(*name), *copies)).collect(),
            salts,
        }
    }
}

/// Blocks of one rank that are to be written to a snapshot.
#[derive(Debug, Default)]
pub(crate) struct RankBlocks {
    pub(crate) held: RankCopy,
    pub(crate) salts: Vec<SaltedBlock>,
    /// Block hashes of blocks that are known only from an engine's report of cached tokens, and that no batch has
    /// announced since.
    pub(crate) answered: Vec<BlockHash>,
}

/// Stream that is to be written to a snapshot. Its ranks are in the same order as in its `head`, which has the state of
/// the stream without its blocks.
#[derive(Debug)]
pub(crate) struct StreamCopy {
    pub(crate) head: StreamHead,
    pub(crate) ranks: Vec<RankBlocks>,
}

/// Blocks of one rank, as read from a snapshot.
#[derive(Debug, Default)]
pub(crate) struct SavedRank {
    pub(crate) held: SavedBlocks,
    pub(crate) salts: Vec<SaltedBlock>,
    pub(crate) answered: Vec<BlockHash>,
}

/// Stream with the blocks of its ranks, as read from a snapshot.
#[derive(Debug)]
pub(crate) struct SavedStream {
    pub(crate) head: StreamHead,
    pub(crate) ranks: Vec<SavedRank>,
}

/// Keyspace (model and routing group) with its streams and pools, as read from a snapshot.
#[derive(Debug)]
pub(crate) struct SavedKeyspace {
    pub(crate) model: String,
    pub(crate) routing_group: String,
    pub(crate) block_size: u32,
    pub(crate) dictionary: Dictionary,
    pub(crate) streams: Vec<SavedStream>,
    pub(crate) pools: Vec<KeyedPool>,
}

/// Shared pool of a keyspace, with the check value (`Identity::key_check`) of the secret key which its content hashes
/// depend on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct KeyedPool {
    pub(crate) key: u32,
    pub(crate) pool: SavedPool,
}

impl SavedStream {
    /// Returns the number of blocks held, summed over all ranks and tiers.
    pub(crate) fn blocks(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.held.blocks()).sum()
    }

    /// Copies the stream in the form in which it is written to another snapshot.
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

/// Copy of the blocks of one rank, made out of the index by the task of the rank's stream.
pub(crate) struct CopiedRank {
    pub(crate) blocks: CopyDone,
    pub(crate) salts: Vec<SaltedBlock>,
    pub(crate) answered: Vec<BlockHash>,
}

/// Copy of a stream, made out of the index by the stream's task. The ranks are in the same order as in the stream's
/// `head`, which has the state of the stream without its blocks.
pub(crate) struct CopiedStream {
    pub(crate) head: StreamHead,
    pub(crate) ranks: Vec<CopiedRank>,
}

/// Request to a stream's task for a copy of the held blocks, to be made before a deadline.
pub(crate) struct CopyRequest {
    answer: SyncSender<Result<CopiedStream, Skip>>,
    until: Instant,
}

impl CopyRequest {
    pub(crate) fn answer(self, copied: Result<CopiedStream, Skip>) {
        // The requester may have given up.
        let _ = self.answer.try_send(copied);
    }

    pub(crate) fn is_given_up(&self) -> bool {
        Instant::now() > self.until
    }
}

/// Channel for requests to a stream's task for copies of the held blocks.
#[derive(Debug, Default)]
pub(crate) struct Copies(Mutex<Option<mpsc::Sender<CopyRequest>>>);

impl Copies {
    /// Returns the receiver of requests for copies, for a task that begins to follow the stream.
    pub(crate) fn listen(&self) -> mpsc::Receiver<CopyRequest> {
        let (sender, receiver) = mpsc::channel(1);
        *self.0.lock() = Some(sender);
        receiver
    }

    fn ask(&self, until: Instant) -> Option<Receiver<Result<CopiedStream, Skip>>> {
        let (answer, answered) = sync_channel(1);
        let sender = self.0.lock().clone()?;
        sender.try_send(CopyRequest { answer, until }).ok()?;
        Some(answered)
    }

    /// Requests a copy of the held blocks, which the stream's task makes between batches, and waits up to `wait` for
    /// it.
    ///
    /// # Errors
    /// The reason why there is no copy.
    pub(crate) fn copy(&self, wait: Duration) -> Result<StreamCopy, Skip> {
        let answered = self.ask(Instant::now() + wait).ok_or(Skip::NoAnswer)?;
        let CopiedStream { head, ranks } = match answered.recv_timeout(wait) {
            Ok(answered) => answered?,
            Err(_) => return Err(Skip::NoAnswer),
        };
        let rank = |CopiedRank { blocks, salts, answered }| RankBlocks { held: blocks.sorted(), salts, answered };
        Ok(StreamCopy { head, ranks: ranks.into_iter().map(rank).collect() })
    }
}
