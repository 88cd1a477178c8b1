//! From a batch's bytes to the index, and what it says about itself to the status.

use std::collections::HashMap;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kvatlas_index::BlockIndex;
use kvatlas_wire::{Batch, Event, Reader, Reason, Tally, decode};

use super::machine::Verdict;
use crate::state::{Keyspace, Stream};

/// A clock further away than this is not the same clock.
const PLAUSIBLE: f64 = 86_400.0;

/// So many announced ranks are remembered with the rank that they are stored under.
const MOST_RANKS: usize = 4096;

/// What a stream has brought into the index.
pub(crate) struct Holdings {
    pub(crate) keyspace: Arc<Keyspace>,
    pub(crate) stream: Arc<Stream>,
    /// The keyspace's index when this began. Should that be replaced, this is too.
    pub(crate) index: Arc<BlockIndex>,
    /// By the rank that blocks are stored under.
    readers: HashMap<u32, Reader>,
    /// The ranks that are stored under, by those announced. It never changes, whoever else comes and goes: what was
    /// stored under a rank is removed under it.
    claimed: HashMap<u32, u32>,
    /// The one used last.
    recent: Option<(u32, u32)>,
}

impl Holdings {
    pub(crate) fn new(keyspace: Arc<Keyspace>, stream: Arc<Stream>) -> Self {
        let index = keyspace.index().clone();
        Self { keyspace, stream, index, readers: HashMap::new(), claimed: HashMap::new(), recent: None }
    }

    /// Applies a batch. Stores that are wrong cost themselves, and are counted; if anything else is, nothing is applied.
    pub(crate) fn apply(&mut self, payload: &[u8], live: bool) -> Verdict {
        let stream = self.stream.clone();
        let (status, counters) = (&stream.status, &stream.status.counters);
        counters.batches.fetch_add(1, Relaxed);
        counters.bytes.fetch_add(payload.len() as u64, Relaxed);
        let batch = match decode(payload) {
            Ok(batch) => batch,
            Err(error) => {
                counters.undecodable_batches.fetch_add(1, Relaxed);
                status.set_error(format!("a payload of {} bytes: {error}", payload.len()));
                return Verdict::Refused;
            }
        };
        if let Some(refused) = batch.refused.last() {
            status.set_error(format!("event {}: {}: {}", refused.at, refused.reason, refused.detail));
        }
        if batch.refused.iter().any(|refused| refused.may_remove) {
            for refused in &batch.refused {
                status.refuse(refused.reason as usize, refused.events);
            }
            return Verdict::Refused;
        }
        let rank = self.rank(batch.rank);
        let keyspace = &*self.keyspace;
        let reader = self
            .readers
            .entry(rank)
            .or_insert_with(|| Reader::new(keyspace.block_size).counting(stream.registration.count_copies));
        let mut tally = Tally::default();
        let apply = |index: &BlockIndex| reader.apply(&batch, index, &stream.worker, rank, &mut tally);
        keyspace.try_change(&self.index, apply).unwrap_or_else(|panic| resume_unwind(panic));
        if reader.upper_bound() && !status.upper_bound.swap(true, Relaxed) {
            self.keyspace.trust_changed();
        }
        counters.events.fetch_add(tally.events, Relaxed);
        counters.stored_blocks.fetch_add(tally.stored_blocks, Relaxed);
        counters.removed_blocks.fetch_add(tally.removed_blocks, Relaxed);
        counters.clears.fetch_add(tally.clears, Relaxed);
        for (reason, count) in tally.refused.iter().enumerate().filter(|(_, count)| **count > 0) {
            status.refuse(reason, *count);
        }
        if live && let Some(lag) = lag(batch.timestamp) {
            status.set_lag(lag);
        }
        self.verdict(&batch, &tally)
    }

    fn verdict(&self, batch: &Batch, tally: &Tally) -> Verdict {
        // Blocks of other groups are not looked for, so nobody misses them.
        let missed = tally.refused_total() - tally.refused_for(Reason::OtherGroup);
        let cleared = batch.events.iter().any(|event| matches!(event, Event::Cleared(_)));
        match (missed, cleared) {
            (1.., _) => Verdict::Partial,
            // It clears one rank.
            (0, true) if self.readers.len() == 1 => Verdict::Cleared,
            _ => Verdict::Whole,
        }
    }

    /// Forgets all that was applied.
    pub(crate) fn clear(&mut self) {
        if self.stream.status.is_trusted() {
            self.stream.status.set_trusted(false);
            self.keyspace.trust_changed();
        }
        for rank in self.stream.ranks() {
            let clear = |index: &BlockIndex| index.clear(&self.stream.worker, Some(rank), None);
            self.keyspace.try_change(&self.index, clear).unwrap_or_else(|panic| resume_unwind(panic));
        }
        self.readers.clear();
        self.stream.status.upper_bound.store(false, Relaxed);
    }

    /// The rank to store under.
    fn rank(&mut self, announced: Option<u32>) -> u32 {
        let registered = self.stream.registration.rank;
        let Some(announced) = announced.filter(|rank| *rank != registered) else { return registered };
        let rank = match self.recent {
            Some((name, rank)) if name == announced => rank,
            _ => self.claim(announced),
        };
        self.recent = Some((announced, rank));
        if rank != announced {
            self.stream.status.counters.rank_conflicts.fetch_add(1, Relaxed);
        }
        rank
    }

    fn claim(&mut self, announced: u32) -> u32 {
        if let Some(rank) = self.claimed.get(&announced) {
            return *rank;
        }
        if self.claimed.len() >= MOST_RANKS {
            return self.stream.registration.rank;
        }
        let rank = self.keyspace.claim(&self.stream, announced);
        self.claimed.insert(announced, rank);
        rank
    }
}

/// How long ago the engine's timestamp is, if its clock is ours.
fn lag(timestamp: f64) -> Option<Duration> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs_f64();
    let lag = now - timestamp;
    (lag.abs() < PLAUSIBLE).then(|| Duration::from_secs_f64(lag.max(0.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_clocks_have_no_lag() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs_f64();
        assert!(lag(now - 3.0).is_some_and(|lag| (3.0..60.0).contains(&lag.as_secs_f64())));
        assert_eq!(lag(now + 100.0), Some(Duration::ZERO));
        for other in [0.0, 5000.0, now * 1000.0, f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(lag(other), None, "{other}");
        }
    }
}
