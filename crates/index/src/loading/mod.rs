//! Blocks that engines can load: their own offloaded blocks, and blocks in pools, which are stores that several engines
//! share.
//!
//! An engine that offloads first uses the leading blocks of a prompt on its device, and then looks for the following
//! blocks on other tiers, chunk by chunk. A chunk is a fixed number of consecutive blocks, stored and loaded together;
//! it begins at a multiple of that number. The engine looks for each chunk in host memory first, then on the other
//! tiers. A block hash covers all preceding blocks, so a chunk is held if the block hash of its last block is held.
//! Device blocks after a missing block count if loadable chunks fill the hole.
//!
//! | file | content |
//! |---|---|
//! | `names.rs` | the block hashes of one rank or pool, each with the prefix hash of its block |
//! | `book.rs` | all ranks that offload and all pools, as changed by events |
//! | `named.rs` | blocks that a pool's store itself names, and loads that keep blocks from being evicted |
//! | `shrink.rs` | blocks that leave pools without an announcement: for lack of room, or missing in a listing of the store |
//! | `walk.rs` | lookups and their results |
//!
//! Settings of engines and pools, and pools' blocks in a snapshot, are in this file.
//!
//! Only ranks that have offloaded blocks, or that may load from a pool, are tracked in this module. For other ranks, an
//! event costs a check of one flag.

mod book;
mod named;
mod names;
mod shrink;
mod walk;

use std::num::{NonZeroU32, NonZeroU64};

use self::book::Part;
use crate::types::Tier;
pub(crate) use book::{HeldName, LoadBook, Outside};
pub use named::NamedBlocks;
pub(crate) use names::only;
pub use walk::{Loadable, Segment};

/// Settings for the way in which a worker's engine offloads blocks from its device to other tiers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OffloadSettings {
    /// Number of blocks in a chunk (blocks stored and loaded together) of host memory, of local disks, and of external
    /// storage; None for the number learnt from stores.
    pub chunks: [Option<NonZeroU32>; 3],
    /// True if offloaded blocks survive a reset of the engine's prefix cache; None if unknown. Engines differ in this,
    /// and do not announce it.
    pub resets_keep: Option<bool>,
}

/// Members of a pool: the workers that write to it and may load from it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Members {
    /// All workers are members of the pool.
    All,
    /// Workers with these names, including workers that have not announced any block yet.
    Named(Vec<Box<str>>),
}

impl Members {
    fn has(&self, worker: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.iter().any(|name| **name == *worker),
        }
    }
}

/// Order in which a pool without room for more evicts blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EvictionOrder {
    /// The block announced longest ago first.
    #[default]
    Announced,
    /// The block announced or loaded longest ago first: least recently used.
    Used,
}

/// Pool: a store of blocks that several engines write to and load from, such as a shared folder.
#[derive(Clone, PartialEq, Debug)]
pub struct SharedPool {
    /// Name of the pool.
    pub name: Box<str>,
    /// Workers that store blocks in the pool and may load from it.
    pub members: Members,
    /// Tier under which the members' events announce the pool's blocks; never the device.
    pub tier: Tier,
    /// Number of blocks in a chunk (blocks stored and loaded together); None for the number learnt from the members'
    /// stores.
    pub chunk: Option<NonZeroU32>,
    /// True if the members announce removals. If false, blocks may leave the pool without an announcement.
    pub announces_removals: bool,
    /// Seconds after its last announcement from which a block no longer counts as present; None for no limit.
    pub lifetime: Option<f64>,
    /// Capacity of the pool in blocks; None for no limit. If more are announced, the blocks announced longest ago no
    /// longer count as present.
    pub room: Option<NonZeroU64>,
    /// Blocks that no longer count once the pool has no room: those announced longest ago, or those used longest ago.
    pub evicts: EvictionOrder,
    /// True if the store itself says which blocks it holds ([`name_in_pool`](crate::BlockIndex::name_in_pool)): events
    /// of members then only tell the contents of these blocks.
    pub follows_store: bool,
    /// True if engines load from the pool only what continues, without a gap from the prompt's beginning, what they find
    /// beyond their devices. Otherwise they continue where their devices end.
    pub from_beginning: bool,
}

/// Chunk of a prompt that a pool has, according to a listing of its store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListedChunk {
    /// Block hash of the chunk's last block.
    pub name: u64,
    /// Content hash of the chunk's last block.
    pub content: u64,
    /// Prefix hash of the chunk's last block.
    pub prefix: u64,
}

/// Blocks of one pool, as saved in a snapshot.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SavedPool {
    /// Name of the pool.
    pub name: Box<str>,
    /// Blocks of the pool, and those of their preceding blocks that are needed to derive prefix hashes; in any order.
    pub blocks: Vec<SavedPoolBlock>,
}

/// Block of a pool, as saved in a snapshot: its block hash, content hash and prefix hash.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SavedPoolBlock {
    /// Block hash.
    pub name: u64,
    /// Block hash of the preceding block; None at the beginning of a prompt.
    pub parent: Option<u64>,
    /// Content hash of the block.
    pub content: u64,
    /// Prefix hash of the block; None if a preceding block is unknown.
    pub prefix: Option<u64>,
    /// Seconds since the block was last announced; None if the block itself is not in the pool, and only blocks that
    /// continue it are.
    pub age: Option<f64>,
}

impl LoadBook {
    /// Chunks of `chunks` that a pool does not have yet; none if the pool does not exist.
    pub(crate) fn missing_chunks(&self, pool: &str, chunks: &[ListedChunk]) -> Vec<ListedChunk> {
        let Some(it) = self.pools.iter().find(|it| *it.name == *pool) else { return Vec::new() };
        let has = |chunk: &ListedChunk| {
            let known = it.names.get(chunk.name);
            known.is_some_and(|known| known.prefix == Some(chunk.prefix) && it.seen.get(&chunk.name).is_some())
        };
        chunks.iter().filter(|chunk| !has(chunk)).copied().collect()
    }

    /// Adds chunks to a pool, whose prefix hashes are known.
    pub(crate) fn add_chunks(&mut self, pool: &str, chunks: &[ListedChunk]) {
        let Some(number) = self.pools.iter().position(|it| *it.name == *pool) else { return };
        let part = Part::Pool(number as u32);
        let (it, now) = (&mut self.pools[number], self.outside.time());
        let tier = only(it.pool.tier);
        let (mut moved, mut named) = (Vec::new(), Vec::new());
        for chunk in chunks {
            // Prefix hashes follow from parent to child block by block, and chunks are further apart: none is a parent.
            moved.extend(it.names.set(chunk.name, (None, chunk.content), tier));
            it.names.put(chunk.name, Some(chunk.prefix), &mut named);
            it.seen.insert(chunk.name, now);
        }
        let names: Vec<_> = chunks.iter().map(|chunk| chunk.name).collect();
        it.note_announced(&names);
        moved.into_iter().for_each(|(name, parent)| self.stop_waiting(part, name, parent));
        self.settle(named.into_iter().map(|name| (part, name)).collect());
        self.keep_to_room(number as u32);
    }

    /// Copies all pools that contain blocks, for a snapshot.
    pub(crate) fn saved_pools(&self) -> Vec<SavedPool> {
        let now = self.outside.time();
        let filled = self.pools.iter().filter(|it| !it.seen.is_empty());
        let saved = filled.map(|it| {
            let blocks = it.names.known().map(|(name, known)| SavedPoolBlock {
                name,
                parent: known.block.0,
                content: known.block.1,
                prefix: known.prefix,
                age: it.seen.get(&name).map(|seen| now - seen),
            });
            SavedPool { name: it.pool.name.clone(), blocks: blocks.collect() }
        });
        saved.collect()
    }

    /// Restores the saved blocks of a pool to the pool of the same name. `elapsed`: seconds since they were saved.
    /// Blocks announced since then stay as they are. Returns the number of blocks restored: 0 if the pool does not
    /// exist.
    pub(crate) fn restore_pool(&mut self, saved: &SavedPool, elapsed: f64) -> usize {
        let Some(number) = self.pools.iter().position(|it| it.pool.name == saved.name) else { return 0 };
        let part = Part::Pool(number as u32);
        let (it, now) = (&mut self.pools[number], self.outside.time());
        let tier = only(it.pool.tier);
        let (mut restored, mut moved, mut named) = (0, Vec::new(), Vec::new());
        let is_new: Vec<_> =
            saved.blocks.iter().filter(|block| it.names.get(block.name).is_none_or(|known| known.on == 0)).collect();
        for block in &is_new {
            let on = if block.age.is_some() { tier } else { 0 };
            moved.extend(it.names.set(block.name, (block.parent, block.content), on));
            if let Some(age) = block.age {
                it.seen.insert(block.name, now - age - elapsed);
                restored += 1;
            }
        }
        for block in &is_new {
            moved.extend(it.names.forget_unused(block.name));
        }
        for block in &is_new {
            let is_unknown = it.names.get(block.name).is_some_and(|known| known.prefix.is_none());
            if is_unknown && block.prefix.is_some() {
                it.names.put(block.name, block.prefix, &mut named);
            }
        }
        moved.into_iter().for_each(|(name, parent)| self.stop_waiting(part, name, parent));
        let mut fresh: Vec<_> = named.into_iter().map(|name| (part, name)).collect();
        is_new.iter().for_each(|block| self.trace(part, block.name, &mut fresh));
        self.settle(fresh);
        self.pools[number].sort_announced();
        self.keep_to_room(number as u32);
        restored
    }
}
