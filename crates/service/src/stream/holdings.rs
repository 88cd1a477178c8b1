//! From a batch's bytes to the index, and what it says about itself to the status.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kvatlas_wire::{Reader, Tally, decode};

use super::block_limits::BlockLimits;
use crate::config::StreamConfig;
use crate::state::{Keyspace, Stream};

/// A clock further away than this is not the same clock.
const PLAUSIBLE: f64 = 86_400.0;

/// What a stream has brought into the index.
pub(crate) struct Holdings {
    keyspace: Arc<Keyspace>,
    stream: Arc<Stream>,
    /// By the rank that blocks are stored under.
    readers: HashMap<u32, Reader>,
    /// The rank last stored under for the rank last announced.
    claimed: Option<(u32, u32)>,
    limits: BlockLimits,
}

impl Holdings {
    pub(crate) fn new(keyspace: Arc<Keyspace>, stream: Arc<Stream>, config: &StreamConfig) -> Self {
        let limits = BlockLimits::new(config);
        Self { keyspace, stream, readers: HashMap::new(), claimed: None, limits }
    }

    /// Applies a batch. Whatever is wrong with it costs it, or a part of it, and is counted.
    pub(crate) fn apply(&mut self, payload: &[u8], live: bool) {
        let stream = self.stream.clone();
        let (status, counters) = (&stream.status, &stream.status.counters);
        counters.batches.fetch_add(1, Relaxed);
        counters.bytes.fetch_add(payload.len() as u64, Relaxed);
        if status.limit().is_some() {
            return;
        }
        let batch = match decode(payload) {
            Ok(batch) => batch,
            Err(error) => {
                counters.undecodable_batches.fetch_add(1, Relaxed);
                status.set_error(format!("a payload of {} bytes: {error}", payload.len()));
                return;
            }
        };
        let rank = self.rank(batch.rank);
        let keyspace = &*self.keyspace;
        let reader = self.readers.entry(rank).or_insert_with(|| Reader::new(keyspace.block_size));
        let mut tally = Tally::default();
        reader.apply(&batch, &keyspace.index, &stream.worker, rank, &mut tally);
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
        if let Some(refused) = batch.refused.last() {
            status.set_error(format!("event {}: {}: {}", refused.at, refused.reason, refused.detail));
        }
        if let Some(limit) = self.limits.stored(tally.stored_blocks, &self.keyspace, &stream) {
            self.clear();
            status.set_limit(Some(limit));
            self.keyspace.trust_changed();
        }
        if live && let Some(lag) = lag(batch.timestamp) {
            status.set_lag(lag);
            self.limits.shared().lagged(lag);
        }
    }

    /// Forgets all that was applied.
    pub(crate) fn clear(&mut self) {
        if self.stream.status.is_trusted() {
            self.stream.status.set_trusted(false);
            self.keyspace.trust_changed();
        }
        for rank in self.stream.ranks() {
            self.keyspace.index.clear(&self.stream.worker, Some(rank), None);
        }
        self.readers.clear();
        self.stream.status.set_limit(None);
        self.stream.status.upper_bound.store(false, Relaxed);
    }

    /// The rank to store under.
    fn rank(&mut self, announced: Option<u32>) -> u32 {
        let registered = self.stream.registration.rank;
        let Some(announced) = announced.filter(|rank| *rank != registered) else { return registered };
        if let Some((_, rank)) = self.claimed.filter(|(name, _)| *name == announced) {
            return rank;
        }
        let rank = self.keyspace.claim(&self.stream, announced);
        if rank == announced {
            self.claimed = Some((announced, rank));
        } else {
            self.stream.status.counters.rank_conflicts.fetch_add(1, Relaxed);
        }
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
