//! The holes of workers, at which a strict search cuts its answers.

use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::{HashMap, HashSet};
use parking_lot::RwLock;

use super::search::Query;
use crate::interface::{Scores, WorkerId};

/// A place without its content: position and prefix hash identify a place of one worker.
pub(crate) type Spot = (u32, u64);

/// The holes of all workers: places that are not held although something that continues them is. One lock for all,
/// since engines evict from the ends of chains and holes are rare.
#[derive(Debug, Default)]
pub(crate) struct Holes {
    of: RwLock<HashMap<WorkerId, HashSet<Spot>>>,
    /// Number of workers with holes, readable without the lock.
    workers: AtomicUsize,
}

impl Holes {
    pub(crate) fn note(&self, worker: WorkerId, spot: Spot) {
        let mut of = self.of.write();
        of.entry(worker).or_default().insert(spot);
        self.workers.store(of.len(), Ordering::Release);
    }

    pub(crate) fn forget(&self, worker: WorkerId, spot: Spot) {
        let mut of = self.of.write();
        if let Some(spots) = of.get_mut(&worker) {
            spots.remove(&spot);
            if spots.is_empty() {
                of.remove(&worker);
            }
        }
        self.workers.store(of.len(), Ordering::Release);
    }

    pub(crate) fn forget_all(&self, worker: WorkerId) {
        if !self.any() {
            return;
        }
        let mut of = self.of.write();
        of.remove(&worker);
        self.workers.store(of.len(), Ordering::Release);
    }

    pub(crate) fn any(&self) -> bool {
        self.workers.load(Ordering::Acquire) > 0
    }

    /// Cuts every depth at the first hole on the query's path.
    pub(crate) fn cut(&self, query: &mut Query<'_>, scores: &mut Scores) {
        let of = self.of.read();
        scores.retain_mut(|(worker, depth)| {
            let Some(spots) = of.get(worker) else { return true };
            if spots.len() < *depth as usize {
                let before = |&&(at, prefix): &&Spot| at < *depth && query.prefix(at as usize) == prefix;
                *depth = spots.iter().filter(before).map(|&(at, _)| at).min().unwrap_or(*depth);
            } else {
                let hole = (0..*depth).find(|&at| spots.contains(&(at, query.prefix(at as usize))));
                *depth = hole.unwrap_or(*depth);
            }
            *depth > 0
        });
    }
}
