//! Pools that LMCache fills: which chunks its coordinator lists, and which of a prompt's chunks are among them.
//!
//! LMCache names a chunk by a hash over the chunk's tokens and the hash of the chunk before, in a way of its own, so a name
//! in a listing says nothing until a prompt comes that has it. Each prompt whose tokens are known is therefore hashed as
//! LMCache hashes it, up to the first chunk that is not listed, and its chunks are added to the pool before the prompt is
//! looked up. What a later listing lacks leaves the pool ([`kvatlas_index::BlockIndex::keep_in_pool`]).

mod listing;

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

use arc_swap::ArcSwapOption;
use kvatlas_adopt::{Algorithm, Namer, Scheme};
use kvatlas_index::ListedChunk;
use kvatlas_index::hash::next_prefix_hash;
use parking_lot::Mutex;
use serde::Deserialize;

use self::listing::{ByRanks, chunk_name};
pub(crate) use self::listing::{ChunkListing, LeftOut, NextPage, PartialListing};

/// Settings of a pool that LMCache fills.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LmcacheConfig {
    /// Name of the model in LMCache's keys; `None` for the name that the engines serve it under.
    pub model: Option<Box<str>>,
    /// LMCache server whose own chunks are in the pool, besides those that all servers share; `None` for the latter only.
    pub instance: Option<Box<str>>,
    /// Number of ranks that have a part of each chunk; none for what the listing shows.
    pub ranks: Option<NonZeroU32>,
    /// Number of tokens in a chunk.
    pub chunk_tokens: NonZeroU32,
    /// Algorithm of the chunks' hashes.
    pub hash: ChunkHash,
    /// Seed of the hashes; `None` for blake3, which has none, and for vLLM's default seed.
    pub seed: Option<Box<str>>,
    /// Chunks that the coordinator has listed, and counts of its lists.
    #[serde(skip)]
    pub(crate) listed: Arc<PoolListings>,
}

/// Algorithm by which LMCache hashes chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChunkHash {
    /// LMCache's own, and its default.
    Blake3,
    /// vLLM's SHA-256 of a pickle.
    Sha256,
    /// vLLM's SHA-256 of canonical CBOR.
    Sha256Cbor,
    /// vLLM's XXH3-128 of a pickle.
    Xxhash,
    /// vLLM's XXH3-128 of canonical CBOR.
    XxhashCbor,
}

/// Chunks of a pool as its coordinator lists them.
#[derive(Debug, Default)]
pub(crate) struct PoolListings {
    pub(crate) partial: Mutex<Option<(PartialListing, Instant)>>,
    pub(crate) complete: ArcSwapOption<(ChunkListing, Instant)>,
    pub(crate) has_failed: AtomicBool,
    pub(crate) completed: AtomicU64,
    pub(crate) failed: AtomicU64,
    /// Number of prompts with an adapter, whose chunks are not looked up, as LMCache's keys do not tell adapters apart.
    pub(crate) adapters: AtomicU64,
}

impl PoolListings {
    /// Number of complete chunks, seconds since the listing began, and numbers of keys left out, as of the last listing.
    pub(crate) fn last(&self) -> Option<(usize, f64, [u64; LeftOut::ALL.len()])> {
        let last = self.complete.load();
        let (listing, begun) = last.as_deref()?;
        Some((listing.chunks(), begun.elapsed().as_secs_f64(), listing.left_out))
    }
}

/// Hashes of a prompt's chunks, one after the other.
enum Hasher {
    Blake3([u8; 32]),
    Vllm(Box<Namer>),
}

impl Hasher {
    fn new(config: &LmcacheConfig) -> Self {
        let algorithm = match config.hash {
            // The parent of the first chunk is the hash of a token 0 after the number 0.
            ChunkHash::Blake3 => return Self::Blake3(*blake3::hash(&[0; 12]).as_bytes()),
            ChunkHash::Sha256 => Algorithm::Sha256,
            ChunkHash::Sha256Cbor => Algorithm::Sha256Cbor,
            ChunkHash::Xxhash => Algorithm::Xxhash,
            ChunkHash::XxhashCbor => Algorithm::XxhashCbor,
        };
        Self::Vllm(Box::new(Scheme { algorithm, seed: config.seed.as_deref().map(Arc::from) }.namer(None)))
    }

    /// Name of the next chunk.
    fn next(&mut self, tokens: &[u32], salt: &str) -> u64 {
        match self {
            Self::Blake3(before) => {
                let mut hasher = blake3::Hasher::new();
                hasher.update(before);
                let mut bytes = [0; 1024];
                for some in tokens.chunks(bytes.len() / 4) {
                    for (to, token) in bytes.as_chunks_mut().0.iter_mut().zip(some) {
                        *to = token.to_be_bytes();
                    }
                    hasher.update(&bytes[..4 * some.len()]);
                }
                *before = *hasher.finalize().as_bytes();
                chunk_name(before, salt)
            }
            Self::Vllm(namer) => chunk_name(namer.next(tokens).bytes(), salt),
        }
    }
}

impl LmcacheConfig {
    /// Number of blocks in a chunk; `None` if chunks do not consist of whole blocks.
    pub(crate) fn chunk(&self, block_size: u32) -> Option<NonZeroU32> {
        let tokens = self.chunk_tokens.get();
        NonZeroU32::new(tokens.checked_div(block_size)?).filter(|_| tokens.is_multiple_of(block_size))
    }

    /// Names of the chunks of a model, as of a listing. `Err`: why there are none, and what to set.
    pub(crate) fn chunks_of<'l>(
        &self,
        listing: &'l ChunkListing,
        model: &str,
    ) -> Result<Option<&'l HashSet<u64>>, String> {
        let model = self.model.as_deref().unwrap_or(model);
        let Some(by_ranks) = listing.models.get(model) else {
            let mut others: Vec<_> = listing.models.keys().map(|name| format!("{name:?}")).take(5).collect();
            others.sort_unstable();
            if others.is_empty() {
                return Ok(None);
            }
            let others = others.join(", ");
            return Err(format!(
                "LMCache has no chunks of {model:?} but some of {others}: set lmcache_model to one of these"
            ));
        };
        match self.ranks {
            Some(ranks) => Ok(by_ranks.get(&ranks.get())),
            None => sole(by_ranks).map_err(|ranks| {
                format!(
                    "LMCache has chunks of {model:?} for engines of {ranks} ranks: set lmcache_ranks to one of these"
                )
            }),
        }
    }

    /// Describes the chunks of a prompt that are listed without a gap from its beginning. `contents`: content hashes of the
    /// prompt's blocks.
    pub(crate) fn listed_chunks(
        &self,
        names: &HashSet<u64>,
        chunk: usize,
        tokens: &[u32],
        contents: &[u64],
        salt: &str,
    ) -> Vec<ListedChunk> {
        let size = self.chunk_tokens.get() as usize;
        let (mut hasher, mut found) = (Hasher::new(self), Vec::new());
        let mut prefix = None;
        for (tokens, contents) in tokens.chunks_exact(size).zip(contents.chunks_exact(chunk)) {
            let name = hasher.next(tokens, salt);
            if !names.contains(&name) {
                break;
            }
            for &content in contents {
                prefix = Some(prefix.map_or(content, |prefix| next_prefix_hash(prefix, content)));
            }
            if let (Some(prefix), Some(&content)) = (prefix, contents.last()) {
                found.push(ListedChunk { name, content, prefix });
            }
        }
        found
    }
}

/// Chunks for the only number of ranks; `Err`: the numbers, if there are several.
fn sole(by_ranks: &ByRanks) -> Result<Option<&HashSet<u64>>, String> {
    if by_ranks.len() < 2 {
        return Ok(by_ranks.values().next());
    }
    let mut ranks: Vec<_> = by_ranks.keys().copied().collect();
    ranks.sort_unstable();
    Err(ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(" and of "))
}
