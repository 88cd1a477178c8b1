//! Connectors: how many blocks they keep as one, and clears, which name no tier.
//!
//! An engine means its device, and may or may not have emptied what it has offloaded: the index knows what its operator says
//! of that ([`Changes::reset`]). One of vLLM's connectors, which keeps blocks in host memory or on disk and marks its events
//! as local, announces clears of its own. They come after the device's events of the batch: after an event of the
//! connector's, or at the end of a batch in which the device was cleared and has stored something since.

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
                self.reset_tier(tier);
            }
            return;
        }
        if index.resets_keep(rank.worker()) {
            self.record_tier(index, rank, Tier::Gpu);
            index.reset(rank.worker(), Some(rank.rank()));
            return self.reset_tier(Tier::Gpu);
        }
        index.reset(rank.worker(), Some(rank.rank()));
        if let Some(recorder) = &mut self.recorder {
            recorder.clear();
        }
        self.salts = Salts::default();
        if let Some(hybrid) = &self.hybrid {
            hybrid.clear(None);
        }
    }

    /// Notes if an event comes from a connector that announces clears of its own.
    pub(super) fn note_connector(&mut self, tier: Tier, locality: Option<&str>) {
        let is_local = locality.is_some_and(|locality| locality.eq_ignore_ascii_case("local"));
        self.clears_host |= is_local && CONNECTORS.contains(&tier);
    }

    /// Learns how many blocks a chunk of a tier has: each store has whole chunks, so it is their greatest common divisor.
    #[inline]
    pub(super) fn learn_chunk(&mut self, tier: Tier, blocks: usize, index: &Changes<'_>, rank: &RankHandle) {
        let Some(slot) = (tier as usize).checked_sub(1) else { return };
        let chunk = gcd(self.chunks[slot], u32::try_from(blocks).unwrap_or(1));
        if chunk != self.chunks[slot] {
            self.chunks[slot] = chunk;
            index.learn_chunk(rank.worker(), rank.rank(), tier, chunk);
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
