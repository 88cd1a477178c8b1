//! Applying batches to the index.

mod adapters;
mod groups;
mod salts;
mod sizes;
mod state;
mod tally;

use std::sync::{Arc, LazyLock};

use kvatlas_index::{self as index, BlockHash, BlockIndex, Changes, RankHandle, RankRef, Tier};

use self::adapters::Adapters;
use self::groups::Groups;
use self::salts::Salts;
use self::sizes::OtherSizes;
pub use self::state::{ReaderState, SaltedBlock};
pub use self::tally::Tally;
use crate::compact::Recorder;
use crate::error::Reason;
use crate::event::{BatchOf, EventOf, RemovedOf, StoredOf};
use crate::hybrid::Hybrid;
use crate::identity::{Identity, Space};
use crate::name::BlockName;

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
    /// left out as by default. Whoever asks the index must then have its depths corrected.
    #[must_use]
    pub fn following_groups(self, follow_groups: bool) -> Self {
        Self { follow_groups, ..self }
    }

    /// Writes down what it changes in the index, from now on.
    #[must_use]
    pub fn recording(self) -> Self {
        Self { recorder: Some(Box::default()), ..self }
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
        for event in &batch.events {
            let applied = match event {
                EventOf::Stored(stored) => self.store(stored, index, &rank, tally),
                EventOf::Removed(removed) => self.remove(removed, index, &rank, tally),
                EventOf::Cleared(_) => {
                    // The event names no tier. One engine means all of them; the other's offloaded blocks may or may
                    // not be gone, and to hold less than there is is the harmless side of that.
                    index.clear(worker, Some(rank.rank()), None);
                    if let Some(recorder) = &mut self.recorder {
                        recorder.clear();
                    }
                    self.salts = Salts::default();
                    if let Some(hybrid) = &self.hybrid {
                        hybrid.clear(None);
                    }
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
            .following_groups(self.follow_groups);
        self.recorder = recorder.then(Box::default);
        self.rank = rank;
    }

    /// Forgets what was on one tier, because that was cleared.
    pub fn reset_tier(&mut self, tier: Tier) {
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
    /// So it is for hybrid models, where a cache group that is not indexed may cut a prefix shorter (sliding window,
    /// Mamba, a second group with full attention), unless groups are followed and all of them say what they need; and for speculative decoding with lookahead, where the engine
    /// tells apart blocks of equal tokens by the tokens after them: there the last block of an answer may be one that
    /// the engine has only before other tokens. And for an adapter that was loaded anew under its name: blocks of the one
    /// before count as the new one's, as long as they are held.
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

    /// These blocks, of which no event told the salt, are held on the device under this one: what continues them has it too.
    pub fn learn_salt(&mut self, names: &[BlockHash], salt: &Arc<str>) {
        self.salts.store(names, Some(salt), Tier::Gpu, false);
    }

    /// Blocks held under a salt, which are the ones that take memory here.
    #[must_use]
    pub fn salted_blocks(&self) -> usize {
        self.salts.len()
    }

    fn store<N: BlockName>(
        &mut self,
        it: &StoredOf<N>,
        index: &mut Changes<'_>,
        rank: &RankHandle,
        tally: &mut Tally,
    ) -> Result<(), Reason> {
        if !self.groups.store(it.group, it.kind.as_deref()) {
            return self.store_other(it, index, rank, tally);
        }
        if it.block_hashes.is_empty() {
            return Ok(());
        }
        if it.block_size == 0 && it.tokens.is_empty() {
            return self.store_by_name(it, index, rank, tally);
        }
        if it.block_size != self.block_size {
            return Err(self.refuse_size(it));
        }
        let size = it.block_size as usize;
        let full = match it.block_hashes.len().checked_mul(size) {
            Some(tokens) if tokens == it.tokens.len() => it.block_hashes.len(),
            // The last block is not full, so no prompt can be found by it.
            Some(tokens) if tokens > it.tokens.len() && tokens - it.tokens.len() < size => it.block_hashes.len() - 1,
            _ => return Err(Reason::TokenCount),
        };
        if full == 0 {
            return Err(Reason::PartialBlock);
        }
        // Some engines add the place when there is something to be put there.
        self.shows_salts = Some(!it.bare || self.shows_salts == Some(true));
        self.looks_ahead |= it.bigrams.is_some() || it.lookahead.is_some();
        let Scratch { names: room, contents } = &mut self.scratch;
        let names = &N::block_hashes(&it.block_hashes, room)[..full];
        let parent = it.parent.as_ref().map(N::block_hash);
        let salt = salt_of(&self.salts, self.adapters.salt_of(it, tally), parent, names);
        contents.resize(names.len(), 0);
        tally.collisions += contents_of(&self.identity, it, salt.as_deref(), contents);
        let tier = it.tier();
        // What was hit has no more copies than before.
        let counts = self.count_copies && !it.reused;
        let stored = if counts {
            index.store(rank, tier, parent, names, contents)
        } else {
            index.store_once(rank, tier, parent, names, contents)
        };
        stored.map_err(|_| Reason::IndexFull)?;
        self.has_stored = true;
        let count_copies = counts && index.config().count_copies;
        if let Some(recorder) = &mut self.recorder {
            recorder.store(tier, parent, names, contents, !count_copies);
        }
        self.salts.store(names, salt.as_ref(), tier, count_copies);
        if let Some(hybrid) = &self.hybrid {
            hybrid.store(parent, names, contents, tier, it.group.is_none(), count_copies);
        }
        tally.stored_blocks += names.len() as u64;
        tally.reused_blocks += if it.reused { names.len() as u64 } else { 0 };
        if full == it.block_hashes.len() { Ok(()) } else { Err(Reason::PartialBlock) }
    }

    /// A store of blocks of another size than the index's: a part of a block, as engines whose hashes are finer than
    /// their blocks store at the end of a prompt, or blocks that cannot be used.
    fn refuse_size<N: BlockName>(&mut self, it: &StoredOf<N>) -> Reason {
        let may_be_part = (1..self.block_size).contains(&it.block_size) && it.block_hashes.len() == 1;
        if !may_be_part || !self.has_stored {
            self.other_sizes.add(it.block_size, it.block_hashes.len() as u64);
        }
        if may_be_part { Reason::PartialBlock } else { Reason::BlockSize }
    }

    /// The size that most blocks have of those that were refused for it, and how many these are.
    #[must_use]
    pub fn other_size(&self) -> Option<(u32, u64)> {
        self.other_sizes.most()
    }

    /// Blocks that were copied to another tier and are announced by name alone, as vLLM's offloading connectors do
    /// unless told otherwise: they contain what the rank holds under these names.
    fn store_by_name<N: BlockName>(
        &mut self,
        it: &StoredOf<N>,
        index: &mut Changes<'_>,
        rank: &RankHandle,
        tally: &mut Tally,
    ) -> Result<(), Reason> {
        if it.reused {
            // A hit of what is known, or of what cannot be known.
            tally.reused_blocks += it.block_hashes.len() as u64;
            return Ok(());
        }
        let tier = it.tier();
        let names = &mut self.scratch.names;
        names.clear();
        names.extend(it.block_hashes.iter().map(N::block_hash));
        let unknown = index.store_known(rank, tier, names);
        // They come in the order of the names.
        let mut left_out = unknown.iter().peekable();
        names.retain(|name| left_out.next_if_eq(&name).is_none());
        let count_copies = self.count_copies && index.config().count_copies;
        if let Some(recorder) = &mut self.recorder {
            recorder.store_known(tier, names, !index.config().count_copies);
        }
        for &name in &*names {
            let salt = self.salts.of(name);
            self.salts.store(&[name], salt.as_ref(), tier, count_copies);
        }
        if let Some(hybrid) = &self.hybrid {
            // What they contain was said when they were stored first.
            hybrid.store(None, names, &[], tier, it.group.is_none(), count_copies);
        }
        tally.stored_blocks += names.len() as u64;
        if unknown.is_empty() { Ok(()) } else { Err(Reason::NoContent) }
    }

    fn remove<N: BlockName>(
        &mut self,
        it: &RemovedOf<N>,
        index: &mut Changes<'_>,
        rank: &RankHandle,
        tally: &mut Tally,
    ) -> Result<(), Reason> {
        let tier = it.tier();
        let names = N::block_hashes(&it.block_hashes, &mut self.scratch.names);
        if !self.groups.remove(it.group) {
            let (Some(group), true) = (it.group, self.follow_groups) else { return Err(Reason::OtherGroup) };
            // Nothing is known of a group before its first store.
            if let Some(hybrid) = &self.hybrid {
                hybrid.remove_other(group, names, tier);
                if self.groups.only_others() {
                    self.salts.remove(names, tier);
                }
            }
            tally.group_events += 1;
            return Ok(());
        }
        index.remove(rank, tier, names);
        if let Some(recorder) = &mut self.recorder {
            recorder.remove(tier, names, !index.config().count_copies);
        }
        self.salts.remove(names, tier);
        if let Some(hybrid) = &self.hybrid {
            hybrid.remove(names, tier, it.group.is_none());
        }
        tally.removed_blocks += names.len() as u64;
        Ok(())
    }

    /// Blocks of a group that is not indexed.
    fn store_other<N: BlockName>(
        &mut self,
        it: &StoredOf<N>,
        index: &mut Changes<'_>,
        rank: &RankHandle,
        tally: &mut Tally,
    ) -> Result<(), Reason> {
        if !self.follow_groups {
            return Err(Reason::OtherGroup);
        }
        let names = N::block_hashes(&it.block_hashes, &mut self.scratch.names);
        let count_copies = self.count_copies && !it.reused && index.config().count_copies;
        let hybrid = self.hybrid.get_or_insert_with(|| seeded(index, rank));
        hybrid.store_other(it, names, it.tier(), count_copies);
        if self.groups.only_others() && it.block_size > 0 {
            let hybrid = hybrid.clone();
            self.link_other(it, &hybrid, count_copies, tally);
        }
        tally.group_events += 1;
        tally.group_blocks += it.block_hashes.len() as u64;
        tally.reused_blocks += if it.reused { it.block_hashes.len() as u64 } else { 0 };
        Ok(())
    }

    /// In models without full attention, the groups that there are have to say what their blocks contain.
    fn link_other<N: BlockName>(&mut self, it: &StoredOf<N>, hybrid: &Hybrid, count_copies: bool, tally: &mut Tally) {
        let fills = it.block_hashes.len().checked_mul(it.block_size as usize) == Some(it.tokens.len());
        let parent = it.parent.as_ref().map(N::block_hash);
        if it.block_size != self.block_size || !fills {
            return hybrid.link_other(parent, &[], None);
        }
        self.looks_ahead |= it.bigrams.is_some() || it.lookahead.is_some();
        let Scratch { names: room, contents } = &mut self.scratch;
        let names = N::block_hashes(&it.block_hashes, room);
        let salt = salt_of(&self.salts, self.adapters.salt_of(it, tally), parent, names);
        contents.resize(names.len(), 0);
        contents_of(&self.identity, it, salt.as_deref(), contents);
        hybrid.link_other(parent, names, Some(contents));
        self.salts.store(names, salt.as_ref(), it.tier(), count_copies);
    }
}

/// The salt of an event's blocks, of which the event shows this one.
fn salt_of(salts: &Salts, shown: Option<&str>, parent: Option<BlockHash>, names: &[BlockHash]) -> Option<Arc<str>> {
    match (shown, parent) {
        (Some(shown), _) => Some(shown.into()),
        // A name means one content, salt included, so what is held under it already tells as well.
        (None, Some(parent)) => salts.of(parent).or_else(|| names.first().and_then(|&name| salts.of(name))),
        (None, None) => None,
    }
}

/// For a rank that turns out to be of a hybrid model: with what the index has of it already.
fn seeded(index: &mut Changes<'_>, rank: &RankHandle) -> Arc<Hybrid> {
    let hybrid = Hybrid::new(index.config().block_size);
    for event in index.dump_rank(rank.worker(), rank.rank()) {
        if let index::Event::Store { tier, parent, block_hashes, content_hashes, .. } = event {
            hybrid.store(parent, &block_hashes, &content_hashes, tier, false, true);
        }
    }
    Arc::new(hybrid)
}

/// Computes the words of the event's blocks, whose tokens fill them. Returns how many of them are those of other blocks
/// too.
fn contents_of<N>(identity: &Identity, it: &StoredOf<N>, salt: Option<&str>, contents: &mut [u64]) -> u64 {
    let lora = it.adapter();
    let space = Space { lora: lora.as_deref(), salt };
    let size = it.block_size as usize;
    identity.words_of(&it.tokens[..contents.len() * size], size, space, &it.extra_keys, contents)
}

/// For readers that nobody has given one: one for the process, so that a reader costs no memory of its own for it.
fn plain() -> Arc<Identity> {
    static PLAIN: LazyLock<Arc<Identity>> = LazyLock::new(Arc::default);
    PLAIN.clone()
}
