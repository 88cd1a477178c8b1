//! Reader of one rank's batches: what is remembered between them, and their application to the index.

mod events;
mod salts;
mod tally;
mod undescribed;

use std::num::NonZeroU32;
use std::sync::{Arc, LazyLock};

use kvatlas_index::{BlockHash, BlockIndex, RankHandle, RankRef, Tier};

use self::salts::{Adapters, Salts};
use self::tally::OtherSizes;
pub use self::tally::Tally;
use self::undescribed::NameOnlyBlocks;
use crate::compact::Recorder;
use crate::event::{BatchOf, BlockName, EventOf};
use crate::hybrid::Hybrid;
use crate::identity::Identity;

/// Reader of one stream (one rank of a worker), which applies batches to an index. It remembers between batches the
/// salts of held blocks, which events do not repeat, and the kinds of cache groups, which removals do not name.
#[derive(Debug)]
pub struct Reader {
    block_size: u32,
    /// Scheme by which blocks are named in the index.
    identity: Arc<Identity>,
    /// True if a block that is announced again gains another copy.
    count_copies: bool,
    salts: Salts,
    groups: Groups,
    /// True if events of cache groups that are not indexed are followed.
    follow_groups: bool,
    /// Blocks of the groups that are not indexed; `None` until there are any.
    hybrid: Option<Arc<Hybrid>>,
    /// True if the engine's block names depend on the tokens after a block.
    looks_ahead: bool,
    /// True if the engine's events have a place for salts; `None` until known.
    shows_salts: Option<bool>,
    /// Digests of adapters' weights, as far as the engine publishes them.
    adapters: Adapters,
    /// Block sizes, in tokens, of blocks refused because the size differs from the index's.
    other_sizes: OtherSizes,
    /// True if a block of the index's block size was ever stored.
    has_stored: bool,
    /// Recorder of the changes to the index; `None` if they are not recorded.
    recorder: Option<Box<Recorder>>,
    /// True if a connector that keeps blocks in host memory, and announces clears of its own, has announced any block.
    clears_host: bool,
    /// Number of blocks in a chunk of host memory, as registered; none if it was not.
    host_chunk: Option<NonZeroU32>,
    /// Number of blocks in a chunk, for each tier beyond the device, as registered or seen in store events; 0 before the
    /// first.
    chunks: [u32; 3],
    /// Blocks beyond the device whose contents the engine has not said yet.
    undescribed: NameOnlyBlocks,
    /// Handle of the rank that the last batch was applied to.
    rank: Option<RankHandle>,
    /// Scratch space, kept so that its memory is reused.
    scratch: Scratch,
}

/// Maximum number of blocks of an event for which memory is kept.
const KEPT: usize = 1 << 14;

#[derive(Debug, Default)]
struct Scratch {
    names: Vec<BlockHash>,
    contents: Vec<u64>,
}

impl Scratch {
    /// Frees memory beyond the usual, so that one large event does not occupy memory for ever.
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
            undescribed: NameOnlyBlocks::default(),
            rank: None,
            scratch: Scratch::default(),
        }
    }

    /// Sets the scheme by which blocks are named in the index, which also notices two blocks with one name. By default,
    /// names are content hashes.
    #[must_use]
    pub fn calling(self, identity: Arc<Identity>) -> Self {
        Self { identity, ..self }
    }

    /// Sets whether a block that is announced again gains another copy, if the index counts copies; true by default.
    #[must_use]
    pub fn counting(self, count_copies: bool) -> Self {
        Self { count_copies, ..self }
    }

    /// Sets whether events of cache groups that are not indexed are kept in a [`Hybrid`], by which depths from the
    /// index must then be corrected. By default they are left out.
    #[must_use]
    pub fn following_groups(self, follow_groups: bool) -> Self {
        Self { follow_groups, ..self }
    }

    /// Sets how many blocks the engine has in a chunk of host memory; none, as by default, to learn it from stores. Stores
    /// of chunks by the name of their last block do not show it. Where the engine announces chunks of its other tiers so,
    /// they are taken to be as long.
    #[must_use]
    pub fn chunking(self, host_chunk: Option<NonZeroU32>) -> Self {
        Self { host_chunk, ..self }
    }

    /// Makes the reader record its changes to the index from now on.
    #[must_use]
    pub fn recording(self) -> Self {
        Self { recorder: Some(Box::new(Recorder::with_chunks(self.chunks))), ..self }
    }

    /// Recorder of the reader's changes; `None` if they are not recorded.
    pub fn recorder(&mut self) -> Option<&mut Recorder> {
        self.recorder.as_deref_mut()
    }

    /// Applies a batch, event by event in order, to the holdings of `rank` of `worker`. Events that cannot be applied,
    /// and those that could not be decoded, are counted by reason; nothing fails as a whole.
    ///
    /// The rank that the batch itself names is ignored: the caller knows which stream it came from.
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

    /// Resets the reader, after the stream's holdings were cleared.
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

    /// Drops what is remembered of one tier, after that tier was cleared.
    pub fn reset_tier(&mut self, tier: Tier) {
        self.undescribed.clear(tier);
        self.note_cleared(tier);
    }

    fn note_cleared(&mut self, tier: Tier) {
        self.salts.clear(tier);
        if let Some(hybrid) = &self.hybrid {
            hybrid.clear(Some(tier));
        }
    }

    /// Blocks of a hybrid model's groups that are not indexed; `None` for other models, and if groups are not followed.
    #[must_use]
    pub fn hybrid(&self) -> Option<&Arc<Hybrid>> {
        self.hybrid.as_ref()
    }

    /// True if answers about this stream are only an upper bound.
    ///
    /// This is so for hybrid models, where a cache group that is not indexed may cut a prefix shorter (sliding window,
    /// Mamba, a second group with full attention), unless groups are followed and the needs of all of them are known;
    /// and for speculative decoding with lookahead, where the engine tells apart blocks of equal tokens by the tokens
    /// after them: there the last block of an answer may be one that the engine has only before other tokens. And for
    /// an adapter that was loaded anew under its name: blocks of the adapter before count as the new one's, as long as
    /// they are held.
    #[must_use]
    pub fn upper_bound(&self) -> bool {
        // Of what nothing is known is no bound.
        let known = self.hybrid.as_ref().is_some_and(|hybrid| hybrid.is_exact() || hybrid.is_blind());
        self.looks_ahead || self.adapters.has_changed() || self.groups.several && !known
    }

    /// True if the engine publishes blocks' salts and other keys besides tokens and adapter; false if its store events
    /// have no place for them. `None` before the first store.
    ///
    /// If false, blocks of a salted prompt look like those of the same prompt without a salt.
    #[must_use]
    pub fn shows_salts(&self) -> Option<bool> {
        self.shows_salts
    }

    /// Sets the salt of blocks held on the device whose events did not have it, so that blocks that continue them
    /// inherit it.
    pub fn learn_salt(&mut self, names: &[BlockHash], salt: &Arc<str>) {
        self.salts.store(names, Some(salt), Tier::Gpu, false);
    }

    /// Number of blocks in a chunk of host memory, local disks and external stores, as registered or seen in store events;
    /// 0 before the first.
    #[must_use]
    pub fn chunks(&self) -> [u32; 3] {
        self.chunks
    }

    /// Number of blocks that were announced by name on tiers beyond the device, and whose contents the engine has not said
    /// yet. They count from when it does.
    #[must_use]
    pub fn undescribed(&self) -> usize {
        self.undescribed.len()
    }

    /// Most frequent size, in tokens, of blocks refused for their size, and the number of blocks of that size; `None`
    /// if none were.
    #[must_use]
    pub fn other_size(&self) -> Option<(u32, u64)> {
        self.other_sizes.most()
    }
}

/// Default naming of blocks, by content hashes: shared by the process, so that a reader needs no memory of its own for
/// it.
fn plain() -> Arc<Identity> {
    static PLAIN: LazyLock<Arc<Identity>> = LazyLock::new(Arc::default);
    PLAIN.clone()
}

/// Cache groups of a stream, as far as known. Store events have a group's kind; removals only its number.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    pub(crate) decides: Option<u32>,
    /// Numbers of groups that cannot be the indexed one.
    pub(crate) others: Vec<u32>,
    /// True if a group that is not indexed may make the reusable prefix shorter.
    pub(crate) several: bool,
}

/// Kinds of groups whose layers attend to the whole prefix.
const WHOLE_PREFIX: [&str; 3] = ["full_attention", "mla_attention", "sink_full_attention"];

/// Maximum number of groups remembered, more than any model has.
const MOST: usize = 64;

impl Groups {
    /// Records the group of a store event. True if it is the indexed group.
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

    /// True if no group was seen yet that could be the indexed one.
    pub(crate) fn only_others(&self) -> bool {
        self.decides.is_none()
    }

    /// True if a removal concerns the indexed group.
    pub(crate) fn remove(&self, group: Option<u32>) -> bool {
        let Some(group) = group else { return true };
        self.decides.map_or(group == 0 && !self.others.contains(&group), |decides| decides == group)
    }
}

/// A block that is held under a cache salt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaltedBlock {
    /// The engine's name of the block.
    pub name: BlockHash,
    /// Cache salt of the block.
    pub salt: Arc<str>,
    /// Number of copies on each tier, in the order of [`Tier::ALL`].
    pub copies: [u32; Tier::ALL.len()],
}

/// State of a [`Reader`] besides what the index holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReaderState {
    /// Number of the cache group that is indexed; `None` if unknown.
    pub decides: Option<u32>,
    /// Numbers of cache groups that are not indexed.
    pub others: Vec<u32>,
    /// True if a group that is not indexed may make the reusable prefix shorter.
    pub several: bool,
    /// True if the engine's block names depend on the tokens after a block.
    pub looks_ahead: bool,
    /// True if the engine's events have a place for salts; `None` until known.
    pub shows_salts: Option<bool>,
    /// True if a connector that keeps blocks in host memory has announced any: it announces clears of its own.
    pub clears_host: bool,
    /// Blocks in a chunk of each tier beyond the device, as told or as stores show; 0 before the first.
    pub chunks: [u32; 3],
    /// Blocks that were announced by name on tiers beyond the device, with their copies on each, and whose contents the
    /// engine has not said yet; in the order of their announcements.
    pub undescribed: Vec<(BlockHash, [u32; Tier::ALL.len() - 1])>,
    /// Salted blocks held, in any order.
    pub salts: Vec<SaltedBlock>,
}

impl Reader {
    /// State of the reader, to be continued by another; `None` for a hybrid model, which has more state.
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
            undescribed: self.undescribed.iter().collect(),
            salts: self.salts.iter().map(salted).collect(),
        })
    }

    /// Continues from the state of another reader, of a rank that holds the same. Settings stay.
    #[must_use]
    pub fn with_state(self, state: ReaderState) -> Self {
        let ReaderState { decides, others, several, looks_ahead, shows_salts, clears_host, chunks, undescribed, salts } =
            state;
        let mut blocks = Salts::default();
        salts.into_iter().for_each(|it| blocks.put(it.name, it.salt, it.copies));
        let mut waiting = NameOnlyBlocks::default();
        undescribed.into_iter().for_each(|(name, copies)| waiting.put(name, copies));
        let groups = Groups { decides, others, several };
        Self { groups, looks_ahead, shows_salts, clears_host, chunks, undescribed: waiting, salts: blocks, ..self }
    }
}
