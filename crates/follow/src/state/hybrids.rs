//! Ranks with hybrid models, and the blocks of their cache groups besides the indexed one.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use kvatlas_wire::Hybrid;

/// Cache groups of hybrid models' ranks, by worker and rank.
#[derive(Debug, Default, Clone)]
pub struct HybridRanks(HashMap<Arc<str>, Vec<(u32, Arc<Hybrid>)>>);

impl HybridRanks {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn get(&self, worker: &str, rank: u32) -> Option<&Arc<Hybrid>> {
        self.0.get(worker)?.iter().find(|(of, _)| *of == rank).map(|(_, hybrid)| hybrid)
    }

    /// Ranks of a worker that have hybrid models, with their cache groups.
    pub(crate) fn of_worker(&self, worker: &str) -> &[(u32, Arc<Hybrid>)] {
        self.0.get(worker).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, u32, &Arc<Hybrid>)> {
        self.0.iter().flat_map(|(worker, ranks)| ranks.iter().map(move |(rank, hybrid)| (worker, *rank, hybrid)))
    }

    fn set(&mut self, worker: &Arc<str>, rank: u32, hybrid: Option<&Arc<Hybrid>>) {
        let ranks = self.0.entry(worker.clone()).or_default();
        ranks.retain(|(of, _)| *of != rank);
        ranks.extend(hybrid.map(|hybrid| (rank, hybrid.clone())));
        if ranks.is_empty() {
            self.0.remove(worker);
        }
    }
}

/// Shared holder of the present [`HybridRanks`], read by every query. It is replaced when an engine proves to have a
/// hybrid model or starts anew.
#[derive(Debug, Default)]
pub struct Hybrids(ArcSwap<HybridRanks>);

impl Hybrids {
    /// Hybrid ranks at this moment.
    #[must_use]
    pub fn load(&self) -> Guard<Arc<HybridRanks>> {
        self.0.load()
    }

    /// Sets the cache groups of a rank; `None` removes them.
    pub(crate) fn set(&self, worker: &Arc<str>, rank: u32, hybrid: Option<&Arc<Hybrid>>) {
        let known = self.0.load();
        if known.get(worker, rank).map(Arc::as_ptr) == hybrid.map(Arc::as_ptr) {
            return;
        }
        drop(known);
        self.0.rcu(|ranks| {
            let mut ranks = HybridRanks::clone(ranks);
            ranks.set(worker, rank, hybrid);
            ranks
        });
    }

    pub(crate) fn clear(&self) {
        self.0.store(Arc::default());
    }
}
