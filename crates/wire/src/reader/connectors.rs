//! Connectors: how many blocks they keep as one, and clears, which name no tier.
//!
//! An engine means its device, and may or may not have emptied what it has offloaded: the index knows what its operator says
//! of that ([`Changes::reset`]). One of vLLM's connectors, which keeps blocks in host memory or on disk and marks its events
//! as local, announces clears of its own. They come after the device's events of the batch: after an event of the
//! connector's, or at the end of a batch in which the device was cleared and has stored something since.

use std::num::NonZeroU32;

use kvatlas_index::{Changes, Event, RankHandle, RankRef, Tier};

use super::Reader;
use super::salts::Salts;
use crate::event::EventOf;

/// Tiers that a connector of this kind keeps blocks on.
const CONNECTORS: [Tier; 2] = [Tier::Cpu, Tier::Disk];

impl Reader {
    /// Applies the clear at a place in a batch.
    pub(super) fn clear<N>(&mut self, events: &[EventOf<N>], at: usize, index: &mut Changes<'_>, rank: &RankHandle) {
        if self.clears_host && is_connectors(events, at) {
            for tier in CONNECTORS {
                self.record_tier(index, rank, tier);
                index.clear(rank.worker(), Some(rank.rank()), Some(tier));
                self.note_cleared(tier);
            }
            return self.forget_undescribed(&CONNECTORS, index, rank);
        }
        if index.resets_keep(rank.worker()) {
            self.record_tier(index, rank, Tier::Gpu);
            index.reset(rank.worker(), Some(rank.rank()));
            return self.note_cleared(Tier::Gpu);
        }
        index.reset(rank.worker(), Some(rank.rank()));
        if let Some(recorder) = &mut self.recorder {
            recorder.clear();
        }
        self.forget_undescribed(&Tier::ALL[1..], index, rank);
        self.salts = Salts::default();
        if let Some(hybrid) = &self.hybrid {
            hybrid.clear(None);
        }
    }

    /// Forgets what was announced by name alone on tiers that were cleared; what is in a pool stays.
    fn forget_undescribed(&mut self, cleared: &[Tier], index: &Changes<'_>, rank: &RankHandle) {
        if !self.undescribed.is_empty() {
            let own = cleared.iter().filter(|tier| !index.is_in_pool(rank.worker(), **tier));
            own.for_each(|tier| self.undescribed.clear(*tier));
        }
    }

    /// Notes if an event comes from a connector that announces clears of its own.
    pub(super) fn note_connector(&mut self, tier: Tier, locality: Option<&str>) {
        let is_local = locality.is_some_and(|locality| locality.eq_ignore_ascii_case("local"));
        self.clears_host |= is_local && CONNECTORS.contains(&tier);
    }

    /// Learns how many blocks a chunk of a tier has: each store has whole chunks, so it is their greatest common divisor,
    /// unless it was told.
    #[inline]
    pub(super) fn learn_chunk(&mut self, tier: Tier, blocks: usize, index: &Changes<'_>, rank: &RankHandle) {
        let Some(slot) = (tier as usize).checked_sub(1) else { return };
        let told = self.host_chunk.filter(|_| tier == Tier::Cpu);
        let chunk = told.map_or_else(|| gcd(self.chunks[slot], u32::try_from(blocks).unwrap_or(1)), NonZeroU32::get);
        self.set_chunk(slot, chunk, index, rank);
    }

    /// Takes a tier's chunks, which come by the names of their last blocks, to be as long as was told, unless stores have
    /// shown it.
    pub(super) fn take_chunk(&mut self, tier: Tier, index: &Changes<'_>, rank: &RankHandle) {
        if let Some(slot) = (tier as usize).checked_sub(1)
            && self.chunks[slot] == 0
            && let Some(told) = self.host_chunk
        {
            self.set_chunk(slot, told.get(), index, rank);
        }
    }

    #[inline]
    fn set_chunk(&mut self, slot: usize, chunk: u32, index: &Changes<'_>, rank: &RankHandle) {
        if chunk != self.chunks[slot] {
            self.chunks[slot] = chunk;
            let tier = Tier::ALL[slot + 1];
            index.learn_chunk(rank.worker(), rank.rank(), tier, chunk);
            if let Some(recorder) = &mut self.recorder {
                recorder.chunk(tier, chunk);
            }
        }
    }

    /// Records that all on a tier is gone, block by block: a record has no clears of one tier.
    fn record_tier(&mut self, index: &mut Changes<'_>, rank: &RankHandle, cleared: Tier) {
        let Some(recorder) = &mut self.recorder else { return };
        for event in index.dump_rank(rank.worker(), rank.rank()) {
            if let Event::Store { tier, block_hashes, .. } = event
                && tier == cleared
            {
                recorder.remove(tier, &block_hashes, !index.config().count_copies);
            }
        }
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// True if the clear at a place in a batch comes from a connector, if there is one that announces clears.
fn is_connectors<N>(events: &[EventOf<N>], at: usize) -> bool {
    let tier = |event: &EventOf<N>| match event {
        EventOf::Stored(stored) => Some(stored.tier()),
        EventOf::Removed(removed) => Some(removed.tier()),
        EventOf::Cleared(_) => None,
    };
    let before = &events[..at];
    if before.iter().any(|event| tier(event).is_some_and(|tier| tier != Tier::Gpu)) {
        return true;
    }
    let last_clear = before.iter().rposition(|event| matches!(event, EventOf::Cleared(_)));
    let stores_since = |clear: usize| before[clear..].iter().any(|event| matches!(event, EventOf::Stored(_)));
    at + 1 == events.len() && last_clear.is_some_and(stores_since)
}
