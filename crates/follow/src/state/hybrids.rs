//! Ranks with hybrid models (models with several cache groups), and the blocks of their cache groups other than the
//! indexed one.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use kvatlas_wire::Hybrid;

/// Blocks of hybrid models' cache groups (layers whose blocks are kept together), by worker and rank.
#[derive(Debug, Default, Clone)]
pub struct HybridRanks(HashMap<Arc<str>, Vec<(u32, Arc<Hybrid>)>>);

impl HybridRanks {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn get(&self, worker: &str, rank: u32) -> Option<&Arc<Hybrid>> {
        self.0.get(worker)?.iter().find(|(of, _)| *of == rank).map(|(_, hybrid)| hybrid)
    }

    /// Returns the ranks of a worker that have hybrid models, with the blocks of their cache groups.
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

/// Shared pointer to the current [`HybridRanks`], which every query reads. Replaced when an engine turns out to have a
/// hybrid model, or restarts.
#[derive(Debug, Default)]
pub struct Hybrids(ArcSwap<HybridRanks>);

impl Hybrids {
    /// Returns the ranks with hybrid models at this moment.
    #[must_use]
    pub fn load(&self) -> Guard<Arc<HybridRanks>> {
        self.0.load()
    }

    /// Sets the blocks of the cache groups of a worker's rank; `None` removes the rank.
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
