//! Reader of one rank's batches: what it remembers between them, and their application to the index.

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

/// Reader of one stream (one rank of a worker): it remembers between batches the salts of the blocks held, which events
/// do not repeat, and the kinds of its cache groups, which removals do not name.
#[derive(Debug)]
pub struct Reader {
    block_size: u32,
    /// Scheme of the blocks' names.
    identity: Arc<Identity>,
    /// True if a block announced again has another copy.
    count_copies: bool,
    salts: Salts,
    groups: Groups,
    /// True if cache groups are followed that are not indexed.
    follow_groups: bool,
    /// Blocks of these groups, as soon as there are any.
    hybrid: Option<Arc<Hybrid>>,
    /// True if names of blocks depend on the tokens after them.
    looks_ahead: bool,
    /// True if events have a place for salts; none while that is not known.
    shows_salts: Option<bool>,
    /// Digests of the adapters, as far as the engine tells them.
    adapters: Adapters,
    /// Sizes of blocks that were refused.
    other_sizes: OtherSizes,
    /// True if a block of the index's size was ever stored.
    has_stored: bool,
    /// Recorder of the changes, if they are written down.
    recorder: Option<Box<Recorder>>,
    /// True if a connector that keeps blocks in host memory has announced any: it announces clears of its own.
    clears_host: bool,
    /// Blocks in a chunk of host memory, if that was told.
    host_chunk: Option<NonZeroU32>,
    /// Blocks in a chunk of each tier beyond the device, as told, or as far as stores show; 0 before the first.
    chunks: [u32; 3],
    /// Blocks beyond the device whose contents the engine has not said yet.
    undescribed: NameOnlyBlocks,
    /// Handle of the rank that the last batch was applied to.
    rank: Option<RankHandle>,
    /// Scratch space, kept for its memory.
    scratch: Scratch,
}

/// Blocks of an event for which memory is kept.
const KEPT: usize = 1 << 14;

#[derive(Debug, Default)]
struct Scratch {
    names: Vec<BlockHash>,
    contents: Vec<u64>,
}

impl Scratch {
    /// Gives memory back: one large event must not cost its memory for ever.
    fn shrink(&mut self) {
        self.names.shrink_to(KEPT.max(self.names.len()));
        self.contents.shrink_to(KEPT.max(self.contents.len()));
    }
}

impl Reader {
    /// Makes a reader for an index of blocks of this many tokens.
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

    /// Sets the scheme of the blocks' names in the index, which also notices two blocks with one name. By default
    /// content hashes are the names.
    #[must_use]
    pub fn calling(self, identity: Arc<Identity>) -> Self {
        Self { identity, ..self }
    }

    /// Sets `count_copies`: a block announced again has another copy, as by default, if the index counts copies.
    #[must_use]
    pub fn counting(self, count_copies: bool) -> Self {
        Self { count_copies, ..self }
    }

    /// Sets `follow_groups`: the events of cache groups that are not indexed are kept in a [`Hybrid`], instead of being
    /// left out as by default. Depths from the index must then be corrected by it.
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

    /// Writes down what it changes in the index, from now on.
    #[must_use]
    pub fn recording(self) -> Self {
        Self { recorder: Some(Box::new(Recorder::with_chunks(self.chunks))), ..self }
    }

    /// Recorder of the reader's changes, if they are written down.
    pub fn recorder(&mut self) -> Option<&mut Recorder> {
        self.recorder.as_deref_mut()
    }

    /// Applies a batch, event by event in its order, to what `rank` of `worker` holds. Events that cannot be applied,
    /// and those that could not be decoded, are counted by reason; nothing fails as a whole.
    ///
    /// The batch's own rank is not looked at: which stream it came by is for the caller to say.
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

    /// Forgets everything: what the stream held was cleared, and it begins anew.
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

    /// Forgets what was on one tier, because that was cleared.
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

    /// Blocks of the groups of a hybrid model that are not indexed; none for other models, and if groups are not
    /// followed.
    #[must_use]
    pub fn hybrid(&self) -> Option<&Arc<Hybrid>> {
        self.hybrid.as_ref()
    }

    /// True if answers about this stream are an upper bound only.
    ///
    /// So it is for hybrid models, where a cache group that is not indexed may cut a prefix shorter (sliding window, Mamba,
    /// a second group with full attention), unless groups are followed and all of them say what they need; and for
    /// speculative decoding with lookahead, where the engine tells apart blocks of equal tokens by the tokens after them:
    /// there the last block of an answer may be one that the engine has only before other tokens. And for an adapter that
    /// was loaded anew under its name: blocks of the one before count as the new one's, as long as they are held.
    #[must_use]
    pub fn upper_bound(&self) -> bool {
        // Of what nothing is known is no bound.
        let known = self.hybrid.as_ref().is_some_and(|hybrid| hybrid.is_exact() || hybrid.is_blind());
        self.looks_ahead || self.adapters.has_changed() || self.groups.several && !known
    }

    /// True if the engine tells the salts of blocks and what else belongs to them besides tokens and adapter; false if
    /// its stores have no place for that. None before the first store.
    ///
    /// Where it does not, blocks of a salted prompt look like those of the same prompt without a salt.
    #[must_use]
    pub fn shows_salts(&self) -> Option<bool> {
        self.shows_salts
    }

    /// Notes the salt of blocks held on the device whose events did not show it: blocks that continue them inherit it.
    pub fn learn_salt(&mut self, names: &[BlockHash], salt: &Arc<str>) {
        self.salts.store(names, Some(salt), Tier::Gpu, false);
    }

    /// Blocks in a chunk of host memory, of local disks and of what is external, as told or as stores show; 0 before the
    /// first one.
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

    /// The size that most blocks have of those that were refused for it, and how many these are.
    #[must_use]
    pub fn other_size(&self) -> Option<(u32, u64)> {
        self.other_sizes.most()
    }
}

/// The default scheme of names: one for the process, so that a reader needs no memory of its own for it.
fn plain() -> Arc<Identity> {
    static PLAIN: LazyLock<Arc<Identity>> = LazyLock::new(Arc::default);
    PLAIN.clone()
}

/// Cache groups of a stream, as far as they are known. Kinds come with stores; removals name the group alone.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    pub(crate) decides: Option<u32>,
    /// Groups that cannot decide.
    pub(crate) others: Vec<u32>,
    /// True if the prefix may be cut shorter by a group that is not indexed.
    pub(crate) several: bool,
}

/// Kinds whose layers attend to the whole prefix.
const WHOLE_PREFIX: [&str; 3] = ["full_attention", "mla_attention", "sink_full_attention"];

/// More groups than any model has: what comes after these is not remembered.
const MOST: usize = 64;

impl Groups {
    /// Notes the group of a store; true if it is the one that decides.
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

    /// True if no group was seen yet that could decide.
    pub(crate) fn only_others(&self) -> bool {
        self.decides.is_none()
    }

    /// True if a removal concerns the group that decides.
    pub(crate) fn remove(&self, group: Option<u32>) -> bool {
        let Some(group) = group else { return true };
        self.decides.map_or(group == 0 && !self.others.contains(&group), |decides| decides == group)
    }
}

/// A block that is held under a salt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaltedBlock {
    /// The engine's name.
    pub name: BlockHash,
    /// The salt.
    pub salt: Arc<str>,
    /// Copies on each tier, in the order of [`Tier::ALL`].
    pub copies: [u32; Tier::ALL.len()],
}

/// State of a [`Reader`] besides what the index holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReaderState {
    /// The cache group that is indexed.
    pub decides: Option<u32>,
    /// Cache groups that are not.
    pub others: Vec<u32>,
    /// True if the prefix may be cut shorter by a group that is not indexed.
    pub several: bool,
    /// True if names of blocks depend on the tokens after them.
    pub looks_ahead: bool,
    /// True if events have a place for salts; none while that is not known.
    pub shows_salts: Option<bool>,
    /// True if a connector that keeps blocks in host memory has announced any: it announces clears of its own.
    pub clears_host: bool,
    /// Blocks in a chunk of each tier beyond the device, as told or as stores show; 0 before the first.
    pub chunks: [u32; 3],
    /// Blocks that were announced by name on tiers beyond the device, with their copies on each, and whose contents the
    /// engine has not said yet; in the order of their announcements.
    pub undescribed: Vec<(BlockHash, [u32; Tier::ALL.len() - 1])>,
    /// The salted blocks held, in any order.
    pub salts: Vec<SaltedBlock>,
}

impl Reader {
    /// State of the reader; none for a hybrid model, which has more state than this.
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

    /// Takes up what another one remembered, of a rank that holds the same. Its settings stay.
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
