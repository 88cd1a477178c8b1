//! The state of each stream in an index that is fed from Python.

use std::collections::HashMap;
use std::sync::Arc;

use kvatlas_index::{BlockIndex, Tier};
use kvatlas_wire::{self as wire, Reader};
use parking_lot::Mutex;

use super::{Batch, Tally};

/// The state of each stream that an index was fed with.
#[derive(Default)]
pub(crate) struct Readers(Mutex<HashMap<Box<str>, Ranks>>);

/// The streams of a worker.
type Ranks = HashMap<u32, Arc<Mutex<Reader>>>;

impl Readers {
    /// Applies a batch of one stream; others of the same stream wait.
    pub(crate) fn apply(&self, batch: &Batch, index: &BlockIndex, worker: &str, rank: Option<u32>) -> Tally {
        let rank = rank.or(batch.it.rank).unwrap_or(0);
        let reader = {
            let mut readers = self.0.lock();
            if !readers.contains_key(worker) {
                readers.insert(worker.into(), HashMap::new());
            }
            let ranks = readers.get_mut(worker);
            let new = || Arc::new(Mutex::new(Reader::new(index.config().block_size)));
            ranks.map_or_else(new, |ranks| ranks.entry(rank).or_insert_with(new).clone())
        };
        let mut reader = reader.lock();
        let mut it = wire::Tally::default();
        reader.apply(&batch.it, index, worker, rank, &mut it);
        Tally { it, upper_bound: reader.upper_bound() }
    }

    /// Resets the state of the streams of a worker that was cleared, or of one rank, tier or both of it.
    pub(crate) fn clear(&self, worker: &str, rank: Option<u32>, tier: Option<Tier>) {
        let mut readers = self.0.lock();
        let Some(ranks) = readers.get_mut(worker) else { return };
        match tier {
            None => ranks.retain(|&other, _| rank.is_some_and(|rank| rank != other)),
            Some(tier) => {
                let cleared = ranks.iter().filter(|(other, _)| rank.is_none_or(|rank| rank == **other));
                cleared.for_each(|(_, reader)| reader.lock().reset_tier(tier));
            }
        }
    }

    /// Forgets the streams of a worker that is gone.
    pub(crate) fn drop_worker(&self, worker: &str) {
        self.0.lock().remove(worker);
    }
}
