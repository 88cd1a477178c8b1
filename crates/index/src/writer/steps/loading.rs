//! Updates of the book of loadable blocks (`loading/`) after events.
//!
//! The book follows the index: after each event it receives the state of the event's block hashes in the rank. Stores
//! in a pool, which several engines share, change only the book, as none of the pool's members holds the blocks by
//! itself.

use smallvec::SmallVec;

use crate::handle::RankRef;
use crate::loading::{HeldName, OffloadSettings, SharedPool, only};
use crate::types::{BlockHash, Event, Tier};
use crate::writer::holders::workers::inner;
use crate::writer::state::Writer;

impl Writer {
    /// Adds a rank to the book of loadable blocks (data about the blocks that engines can load), with the blocks that
    /// it has now.
    #[cold]
    pub(in crate::writer) fn track(&mut self, rank: u32) {
        let Some(member) = self.roster.get(self.device_of(rank)) else { return };
        self.rank_mut(rank).is_tracked = true;
        self.loading.write().track(rank, member.worker.clone(), member.rank);
        let mut names = Vec::new();
        for event in self.copy_rank(&member.worker, member.rank).events(&member.worker, member.rank) {
            if let Event::Store { block_hashes, .. } = event {
                names.extend(block_hashes.into_iter().map(inner));
            }
        }
        self.tell_loading(rank, &names, true);
    }

    /// Adds a pool (a store that several engines load from) to the data about loadable blocks, and the ranks that may
    /// load from it.
    pub(crate) fn add_pool(&mut self, pool: SharedPool) {
        self.loading.write().add_pool(pool);
        let untracked = self.workers.ranks().filter(|(_, _, books)| !books.is_tracked);
        let untracked: Vec<_> =
            untracked.filter_map(|(name, rank, _)| Some((name.clone(), self.workers.rank(name, rank)?))).collect();
        for (worker, rank) in untracked {
            if self.loading.read().is_member(&worker) {
                self.track(rank);
            }
        }
    }

    pub(crate) fn set_offloading(&mut self, worker: &str, settings: OffloadSettings) {
        self.loading.write().set_offloading(worker, settings);
    }

    pub(crate) fn set_usual_offloading(&mut self, settings: OffloadSettings) {
        self.loading.write().set_usual(settings);
    }

    /// Sends the current state of some of a rank's block hashes to the book of loadable blocks, if the book has the
    /// rank. `device_says`: true after a store on the device.
    #[inline]
    pub(in crate::writer) fn tell_loading(&mut self, rank: u32, names: &[u64], device_says: bool) {
        if self.workers.get(rank).is_some_and(|books| books.is_tracked) {
            self.tell_of(rank, names, device_says);
        }
    }

    #[cold]
    fn tell_of(&mut self, rank: u32, names: &[u64], device_says: bool) {
        let Some(books) = self.workers.get(rank) else { return };
        let (device, widest) = (books.device, books.widest());
        let said = |&name: &u64| {
            let claims = books.offloaded.get(name).unwrap_or_default();
            let tiers = claims.iter().zip(&Tier::ALL[1..]).filter(|(copies, _)| **copies > 0);
            let mut on = tiers.fold(0, |on, (_, tier)| on | only(*tier));
            if self.has_name(device, name) {
                on |= only(Tier::Gpu);
            }
            HeldName { name, on, block: self.block(widest, name) }
        };
        let said: Vec<HeldName> = names.iter().map(said).collect();
        self.loading.write().sync(rank, &said, device_says);
    }

    /// Stores a chain in the pool to which a rank's events on this tier belong; returns false if there is none. Also
    /// adds the rank to the book of loadable blocks.
    pub(in crate::writer) fn store_in_pool(
        &mut self,
        rank: u32,
        tier: Tier,
        parent: Option<u64>,
        names: &[u64],
        contents: &[u64],
    ) -> bool {
        if !self.rank_mut(rank).is_tracked {
            self.track(rank);
        }
        let mut loading = self.loading.write();
        let pool = loading.pool_at(rank, tier);
        if let Some(pool) = pool {
            loading.store_in_pool(pool, rank, parent, names, contents);
        }
        pool.is_some()
    }

    /// Stores a chain on a rank's own tier other than the device. If a pool of the rank knows a block hash, the pool's
    /// parent and content are used instead of those announced.
    pub(in crate::writer) fn store_as_pools_say(
        &mut self,
        rank: u32,
        tier: Tier,
        parent: Option<u64>,
        names: &[u64],
        contents: &[u64],
    ) {
        let mut said: SmallVec<[(Option<u64>, u64); 16]> = SmallVec::new();
        {
            let loading = self.loading.read();
            if loading.has_pools(rank) {
                for (i, (&name, &content)) in names.iter().zip(contents).enumerate() {
                    let parent = if i == 0 { parent } else { Some(names[i - 1]) };
                    said.push(loading.block_in_pools(rank, name).unwrap_or((parent, content)));
                }
            }
        }
        if said.is_empty() {
            return self.store_elsewhere(rank, tier, parent, names, contents);
        }
        for (&name, (parent, content)) in names.iter().zip(said) {
            self.store_elsewhere(rank, tier, parent, &[name], &[content]);
        }
    }

    /// Parent and content of a block in the pools from which a rank may load, even if the rank has announced nothing
    /// yet; None if no pool has it.
    pub(in crate::writer) fn block_in_pools(
        &self,
        rank: &impl RankRef,
        block_hash: BlockHash,
    ) -> Option<(Option<u64>, u64)> {
        self.loading.read().block_in_pools_of(rank.worker(), inner(block_hash))
    }

    /// True if a rank holds a block with this prefix hash on its device.
    pub(crate) fn is_on_device(&mut self, rank: &impl RankRef, prefix: u64) -> bool {
        let Some(number) = self.number_of(rank) else { return false };
        if !self.rank_mut(number).is_tracked {
            self.track(number);
        }
        self.loading.read().is_on_device(number, prefix)
    }

    /// Block hashes that a rank holds on a tier, as described at [`Changes::names_on`](crate::Changes::names_on).
    pub(crate) fn names_on(&self, rank: &impl RankRef, tier: Tier) -> Vec<(BlockHash, bool)> {
        let held = self.number_of(rank).map(|number| self.loading.read().names_on(number, tier));
        held.into_iter().flatten().map(|(name, is_on_device)| (BlockHash(name), is_on_device)).collect()
    }

    /// Number of the pool to which a rank's events on this tier belong; None if the tier is the rank's own.
    pub(in crate::writer) fn pool_at(&self, rank: u32, tier: Tier) -> Option<u32> {
        let is_tracked = tier != Tier::Gpu && self.workers.get(rank).is_some_and(|books| books.is_tracked);
        if is_tracked { self.loading.read().pool_at(rank, tier) } else { None }
    }

    /// Applies a reset of an engine's prefix cache, according to the settings for its offloaded blocks, as described at
    /// [`crate::BlockIndex::reset`]. Returns the ranks whose clearing must be continued.
    pub(crate) fn reset(&mut self, worker: &str, rank: Option<u32>) -> SmallVec<[u32; 4]> {
        let keep = self.loading.read().settings_of(worker).resets_keep;
        match keep {
            Some(true) => return self.clear(worker, rank, Some(Tier::Gpu)),
            Some(false) => return self.clear(worker, rank, None),
            None => {}
        }
        let ranks = self.workers.by_name.get(worker).into_iter().flatten();
        let numbers = ranks.filter(|(n, _)| rank.is_none_or(|rank| rank == *n)).map(|(_, number)| *number);
        let in_doubt: SmallVec<[u32; 4]> = numbers
            .filter(|&number| {
                let has_offloaded = self.workers.get(number).is_some_and(|books| books.offloaded.len() > 0);
                has_offloaded || self.loading.read().is_in_doubt(number)
            })
            .collect();
        let left = self.clear(worker, rank, None);
        in_doubt.into_iter().for_each(|number| self.loading.write().doubt(number));
        left
    }
}
