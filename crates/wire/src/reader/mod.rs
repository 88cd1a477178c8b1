//! Reader of the event batches of one rank (data-parallel instance of an engine): applies the batches to the index, and
//! keeps the state that is needed between batches.

mod chunks;
mod events;
mod salts;
mod tally;
mod undescribed;

use std::num::NonZeroU32;
use std::sync::{Arc, LazyLock};

use kvatlas_index::{BlockHash, BlockIndex, RankHandle, RankRef, Tier};

use self::chunks::OwnChunks;
use self::salts::{Adapters, Salts};
use self::tally::OtherSizes;
pub use self::tally::Tally;
use self::undescribed::NameOnlyBlocks;
use crate::compact::Recorder;
use crate::event::{BatchOf, BlockName, EventOf};
use crate::hybrid::Hybrid;
use crate::identity::Identity;

/// Reader of one stream (one rank of a worker), which applies batches of events to an index. Between batches, the
/// reader remembers the cache salts of held blocks, which events do not repeat, and the kinds of a model's cache
/// groups, which removal events do not name.
#[derive(Debug)]
pub struct Reader {
    block_size: u32,
    /// Scheme that computes the hashes by which the index identifies blocks.
    identity: Arc<Identity>,
    /// True if a repeated announcement of a block adds a copy of the block.
    count_copies: bool,
    salts: Salts,
    groups: Groups,
    /// True if events are applied for all cache groups of a hybrid model, and not only for the one in the index.
    follow_groups: bool,
    /// Blocks of a hybrid model's cache groups that are not in the index; `None` before the first event of one.
    hybrid: Option<Arc<Hybrid>>,
    /// True if the engine's block hashes depend on the tokens after a block.
    looks_ahead: bool,
    /// True if the engine's events have a field for cache salts; `None` before the first store event.
    shows_salts: Option<bool>,
    /// Digests of LoRA adapters' weights, if the engine publishes them.
    adapters: Adapters,
    /// Counts of blocks, by block size in tokens, that were refused because their size differs from the index's.
    other_sizes: OtherSizes,
    /// True if a block of the index's block size has ever been stored.
    has_stored: bool,
    /// Recorder of the changes to the index; `None` if they are not recorded.
    recorder: Option<Box<Recorder>>,
    /// True if any block was announced by an offloading connector that keeps blocks in host memory or on disk and
    /// announces clears of its own.
    clears_host: bool,
    /// Number of blocks in a chunk (the unit of storage) of host memory, as registered; `None` if it was not
    /// registered.
    host_chunk: Option<NonZeroU32>,
    /// Number of blocks in a chunk (the unit of storage) of each tier beyond the device, as registered or as seen in
    /// store events; 0 before the tier's first store.
    chunks: [u32; 3],
    /// Chunks that a connector stores under block hashes of its own, and the salts and adapters that it does not announce.
    own_chunks: OwnChunks,
    /// Blocks on tiers beyond the device that were announced by block hash alone, and whose contents are not known yet.
    undescribed: NameOnlyBlocks,
    /// Index handle of the rank that the last batch was applied to.
    rank: Option<RankHandle>,
    /// Buffers for one event's blocks, kept between events so that their memory is reused.
    scratch: Scratch,
}

/// Maximum capacity of the reused buffers, in blocks. Memory for larger events is freed after use.
const KEPT: usize = 1 << 14;

#[derive(Debug, Default)]
struct Scratch {
    names: Vec<BlockHash>,
    contents: Vec<u64>,
}

impl Scratch {
    /// Frees the buffers' memory beyond [`KEPT`] blocks, so that one large event does not occupy memory forever.
    fn shrink(&mut self) {
        self.names.shrink_to(KEPT.max(self.names.len()));
        self.contents.shrink_to(KEPT.max(self.contents.len()));
    }
}

impl Reader {
    /// Creates a reader for an index with blocks of `block_size` tokens.
    #[must_use]
    pub fn new(block_size: u32) -> Self {
        Self {
            block_size,
            identity: plain(),
            count_copies: true,
            salts: Salts::default(),
            groups: Groups::default(),
            follow_groups: false,
            hybrid: None,
            looks_ahead: false,
            shows_salts: None,
            adapters: Adapters::default(),
            other_sizes: OtherSizes::default(),
            has_stored: false,
            recorder: None,
            clears_host: false,
            host_chunk: None,
            chunks: [0; 3],
            own_chunks: OwnChunks::default(),
            undescribed: NameOnlyBlocks::default(),
            rank: None,
            scratch: Scratch::default(),
        }
    }

    /// Sets the scheme that computes the hashes by which the index identifies blocks, and that also notices two
    /// different blocks with equal hashes. By default, blocks are identified by content hashes.
    #[must_use]
    pub fn calling(self, identity: Arc<Identity>) -> Self {
        Self { identity, ..self }
    }

    /// Sets whether a repeated announcement of a block adds a copy of the block, if the index counts copies. True by
    /// default.
    #[must_use]
    pub fn counting(self, count_copies: bool) -> Self {
        Self { count_copies, ..self }
    }

    /// Sets whether events of a hybrid model's cache groups other than the indexed one are applied to a [`Hybrid`],
    /// which must then be used to correct depths from the index. By default, the events are skipped.
    #[must_use]
    pub fn following_groups(self, follow_groups: bool) -> Self {
        Self { follow_groups, ..self }
    }

    /// Sets the number of blocks in a chunk (the unit of storage) of the engine's host memory. With `None`, the
    /// default, the number is learned from store events; these do not show it if they name only a chunk's last block.
    /// The number is also used for other tiers whose chunks are announced by their last block only.
    #[must_use]
    pub fn chunking(self, host_chunk: Option<NonZeroU32>) -> Self {
        Self { host_chunk, ..self }
    }

    /// Makes the reader record each change that it makes to the index from now on.
    #[must_use]
    pub fn recording(self) -> Self {
        Self {
            recorder: Some(Box::new(Recorder::with_chunks(self.chunks, self.own_chunks.blocks.map(|it| it > 0)))),
            ..self
        }
    }

    /// Returns the recorder of the changes made to the index; `None` if changes are not recorded.
    pub fn recorder(&mut self) -> Option<&mut Recorder> {
        self.recorder.as_deref_mut()
    }

    /// Applies a batch of events to the index, in order, as changes of the blocks held by rank number `rank` of
    /// `worker`. Events that cannot be decoded or applied are counted in `tally` by reason; the batch as a whole never
    /// fails.
    ///
    /// The rank named in the batch is ignored, because the caller knows which stream the batch came from.
    pub fn apply<N: BlockName>(
        &mut self,
        batch: &BatchOf<N>,
        index: &BlockIndex,
        worker: &str,
        rank: u32,
        tally: &mut Tally,
    ) {
        let index = &mut index.changes();
        let rank = match self.rank.take() {
            Some(last) if last.worker() == worker && last.rank() == rank => last,
            _ => RankHandle::new(worker, rank),
        };
        for refused in &batch.refused {
            tally.refuse(refused.reason, refused.events);
        }
        self.scratch.shrink();
        for (at, event) in batch.events.iter().enumerate() {
            let applied = match event {
                EventOf::Stored(stored) => self.store(stored, index, &rank, tally),
                EventOf::Removed(removed) => self.remove(removed, index, &rank, tally),
                EventOf::Cleared(_) => {
                    self.clear(&batch.events, at, index, &rank);
                    tally.clears += 1;
                    Ok(())
                }
            };
            match applied {
                Ok(()) => tally.events += 1,
                Err(reason) => tally.refuse(reason, 1),
            }
        }
        self.rank = Some(rank);
    }

    /// Resets the reader to its initial state, after all blocks held by the stream's rank were removed from the index.
    /// Settings are kept.
    pub fn reset(&mut self) {
        let (recorder, rank) = (self.recorder.is_some(), self.rank.take());
        *self = Self::new(self.block_size)
            .calling(self.identity.clone())
            .counting(self.count_copies)
            .chunking(self.host_chunk)
            .following_groups(self.follow_groups);
        self.recorder = recorder.then(Box::default);
        self.rank = rank;
    }

    /// Drops the state that concerns one tier, after that tier was cleared in the index.
    pub fn reset_tier(&mut self, tier: Tier) {
        self.undescribed.clear(tier);
        self.note_cleared(tier);
    }

    fn note_cleared(&mut self, tier: Tier) {
        self.salts.clear(tier);
        if tier == Tier::Gpu {
            self.own_chunks.clear_device();
        }
        if let Some(hybrid) = &self.hybrid {
            hybrid.clear(Some(tier));
        }
    }

    /// Returns the blocks of a hybrid model's cache groups that are not in the index; `None` for other models, and if
    /// only the group in the index is followed.
    #[must_use]
    pub fn hybrid(&self) -> Option<&Arc<Hybrid>> {
        self.hybrid.as_ref()
    }

    /// True if the depths that the index returns for the stream's rank are only an upper bound. There are three cases:
    ///
    /// * Hybrid models, where a cache group that is not indexed (sliding window, Mamba, a second group with full attention)
    ///   may make the reusable prefix shorter; unless all groups are followed and the needs of each are known.
    /// * Speculative decoding with lookahead, where the engine distinguishes blocks of equal tokens by the tokens after
    ///   them. The engine may then hold the last matched block only with other tokens after it.
    /// * LoRA adapters that were reloaded with other weights under the same name: blocks of the old adapter count as
    ///   blocks of the new one for as long as they are held.
    #[must_use]
    pub fn upper_bound(&self) -> bool {
        // Of what nothing is known is no bound.
        let known = self.hybrid.as_ref().is_some_and(|hybrid| hybrid.is_exact() || hybrid.is_blind());
        self.looks_ahead || self.adapters.has_changed() || self.groups.several && !known
    }

    /// True if the engine's store events contain the cache salt and other keys that distinguish blocks besides tokens
    /// and adapter; false if the events have no field for them; `None` before the first store event.
    ///
    /// If false, blocks of a salted prompt look like those of the same prompt without a salt.
    #[must_use]
    pub fn shows_salts(&self) -> Option<bool> {
        self.shows_salts
    }

    /// Sets the cache salt of blocks held on the device whose store events did not contain it, so that blocks that
    /// continue their chains inherit the salt.
    pub fn learn_salt(&mut self, names: &[BlockHash], salt: &Arc<str>) {
        self.salts.store(names, Some(salt), Tier::Gpu, false);
    }

    /// Returns the number of blocks in a chunk (the unit of storage) of host memory, local disks and external stores,
    /// in this order; as registered or as seen in store events, 0 before the first.
    #[must_use]
    pub fn chunks(&self) -> [u32; 3] {
        self.chunks
    }

    /// True if a connector stores whole chunks under block hashes of its own on this tier, as LMCache's does. The engine
    /// loads these only if they continue, without a gap from the prompt's beginning, what is beyond its device.
    #[must_use]
    pub fn has_own_chunks(&self, tier: Tier) -> bool {
        self.own_chunks.on(tier) > 0
    }

    /// Returns the number of blocks on tiers beyond the device that were announced by block hash alone, and whose
    /// contents are not known yet. The index does not count them as held until their contents are announced.
    #[must_use]
    pub fn undescribed(&self) -> usize {
        self.undescribed.len()
    }

    /// Returns the most frequent size, in tokens, among the blocks refused because of their size, and the number of
    /// blocks of that size; `None` if no block was refused for that reason.
    #[must_use]
    pub fn other_size(&self) -> Option<(u32, u64)> {
        self.other_sizes.most()
    }
}

/// Returns the default scheme for identifying blocks, by content hashes. One instance is shared by all readers of the
/// process to save memory.
fn plain() -> Arc<Identity> {
    static PLAIN: LazyLock<Arc<Identity>> = LazyLock::new(Arc::default);
    PLAIN.clone()
}

/// Cache groups of a stream's model (layers whose blocks are kept together), as known so far. Store events contain a
/// group's number and its kind of attention, removal events only its number.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    pub(crate) decides: Option<u32>,
    /// Numbers of cache groups (layers whose blocks are kept together) whose blocks the index does not have.
    pub(crate) others: Vec<u32>,
    /// True if a cache group whose blocks the index does not have may make the reusable prefix shorter.
    pub(crate) several: bool,
}

/// Kinds of cache groups whose layers attend to the whole prefix, as named in events.
const WHOLE_PREFIX: [&str; 3] = ["full_attention", "mla_attention", "sink_full_attention"];

/// Maximum number of cache groups remembered, more than any model has.
const MOST: usize = 64;

impl Groups {
    /// Records the cache group of a store event. Returns true if it is the cache group whose blocks the index has.
    pub(crate) fn store(&mut self, group: Option<u32>, kind: Option<&str>) -> bool {
        let kind = kind.filter(|&kind| kind != "unknown");
        let whole = kind.map(|kind| WHOLE_PREFIX.contains(&kind));
        let Some(group) = group else {
            // Engines that have only one, and connectors that keep whole blocks.
            self.several |= whole == Some(false);
            return whole != Some(false);
        };
        // Engines name groups before they name kinds; then the first is the one with full attention.
        let can = whole.unwrap_or_else(|| self.decides == Some(group) || group == 0 && !self.others.contains(&group));
        if can && *self.decides.get_or_insert(group) == group {
            return true;
        }
        if !can && !self.others.contains(&group) && self.others.len() < MOST {
            self.others.push(group);
        }
        self.several = true;
        false
    }

    /// True if no cache group whose blocks could be in the index has been seen yet.
    pub(crate) fn only_others(&self) -> bool {
        self.decides.is_none()
    }

    /// True if a removal event with this cache group concerns blocks in the index.
    pub(crate) fn remove(&self, group: Option<u32>) -> bool {
        let Some(group) = group else { return true };
        self.decides.map_or(group == 0 && !self.others.contains(&group), |decides| decides == group)
    }
}

/// A block that is held under a cache salt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaltedBlock {
    /// Block hash, the engine's identifier of the block.
    pub name: BlockHash,
    /// Cache salt of the block.
    pub salt: Arc<str>,
    /// Number of copies of the block on each tier, in the order of [`Tier::ALL`].
    pub copies: [u32; Tier::ALL.len()],
}

/// State of a [`Reader`] that is not in the index, for snapshots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReaderState {
    /// Number of the cache group (layers whose blocks are kept together) whose blocks the index has; `None` if unknown.
    pub decides: Option<u32>,
    /// Numbers of cache groups (layers whose blocks are kept together) whose blocks the index does not have.
    pub others: Vec<u32>,
    /// True if a cache group whose blocks the index does not have may make the reusable prefix shorter.
    pub several: bool,
    /// True if the engine's block hashes depend on the tokens after a block.
    pub looks_ahead: bool,
    /// True if the engine's events have a field for cache salts; `None` before the first store event.
    pub shows_salts: Option<bool>,
    /// True if any block was announced by an offloading connector that keeps blocks in host memory or on disk and
    /// announces clears of its own.
    pub clears_host: bool,
    /// Number of blocks in a chunk (the unit of storage) of each tier beyond the device, as registered or as seen in
    /// store events; 0 before the tier's first store.
    pub chunks: [u32; 3],
    /// Number of blocks in a chunk that a connector stores under one block hash of its own, for each tier beyond the device;
    /// 0 where no connector does.
    pub own_chunks: [u32; 3],
    /// True if any block on the device has had a LoRA adapter or a cache salt.
    pub has_keys: bool,
    /// Blocks on tiers beyond the device that were announced by block hash alone and whose contents are not known yet,
    /// each with its number of copies on each tier; in the order of their first announcements.
    pub undescribed: Vec<(BlockHash, [u32; Tier::ALL.len() - 1])>,
    /// Blocks with a cache salt that are held, in any order.
    pub salts: Vec<SaltedBlock>,
}

impl Reader {
    /// Returns the reader's state, from which another reader can continue; `None` for a hybrid model, whose further
    /// state cannot be saved.
    #[must_use]
    pub fn state(&self) -> Option<ReaderState> {
        if self.hybrid.is_some() {
            return None;
        }
        let salted = |(name, salt, copies): (BlockHash, &Arc<str>, _)| SaltedBlock { name, salt: salt.clone(), copies };
        Some(ReaderState {
            decides: self.groups.decides,
            others: self.groups.others.clone(),
            several: self.groups.several,
            looks_ahead: self.looks_ahead,
            shows_salts: self.shows_salts,
            clears_host: self.clears_host,
            chunks: self.chunks,
            own_chunks: self.own_chunks.blocks,
            has_keys: self.own_chunks.has_keys,
            undescribed: self.undescribed.iter().collect(),
            salts: self.salts.iter().map(salted).collect(),
        })
    }

    /// Replaces the reader's state by the state of another reader, whose rank held the same blocks. The settings are kept.
    #[must_use]
    pub fn with_state(self, state: ReaderState) -> Self {
        let ReaderState { decides, others, several, looks_ahead, shows_salts, clears_host, chunks, .. } = state;
        let ReaderState { own_chunks, has_keys, undescribed, salts, .. } = state;
        let own_chunks = OwnChunks::restored(own_chunks, has_keys);
        let mut blocks = Salts::default();
        salts.into_iter().for_each(|it| blocks.put(it.name, it.salt, it.copies));
        let mut waiting = NameOnlyBlocks::default();
        undescribed.into_iter().for_each(|(name, copies)| waiting.put(name, copies));
        let groups = Groups { decides, others, several };
        let (undescribed, salts) = (waiting, blocks);
        Self { groups, looks_ahead, shows_salts, clears_host, chunks, own_chunks, undescribed, salts, ..self }
    }
}
