//! Counts of a stream's latest batches, until they are added to its status.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kvatlas_wire::Tally;

use crate::state::StreamStatus;
use kvatlas_stream::limits::SharedCounts;

/// Largest plausible difference of the engine's clock, in seconds.
const PLAUSIBLE: f64 = 86_400.0;

/// Counts of a stream's latest batches, kept in its task until all available messages are read.
#[derive(Default)]
pub(super) struct PendingCounts {
    pub(super) batches: u64,
    pub(super) bytes: u64,
    pub(super) tally: Tally,
    /// Engine's time of each live batch.
    pub(super) timestamps: Vec<f64>,
}

impl PendingCounts {
    /// Adds the counts to the status, and begins anew.
    pub(super) fn tell(&mut self, status: &StreamStatus, shared: &SharedCounts) {
        let Self { batches, bytes, tally, timestamps } = self;
        if *batches == 0 {
            return;
        }
        let counters = &status.counters;
        add(&counters.batches, std::mem::take(batches));
        add(&counters.bytes, std::mem::take(bytes));
        add(&counters.events, tally.events);
        add(&counters.stored_blocks, tally.stored_blocks);
        add(&counters.removed_blocks, tally.removed_blocks);
        add(&counters.group_events, tally.group_events);
        add(&counters.group_blocks, tally.group_blocks);
        add(&counters.reused_blocks, tally.reused_blocks);
        add(&counters.named_blocks, tally.named_blocks);
        let offloaded = [&counters.host_blocks, &counters.disk_blocks, &counters.external_blocks];
        offloaded.into_iter().zip(tally.offloaded_blocks).for_each(|(counter, blocks)| add(counter, blocks));
        add(&counters.adapter_digests, tally.adapter_digests);
        add(&counters.unsure_keys, tally.unsure_keys);
        add(&counters.collisions, tally.collisions);
        add(&counters.clears, tally.clears);
        for (reason, count) in tally.refused.iter().enumerate().filter(|(_, count)| **count > 0) {
            status.refuse(reason, *count);
        }
        *tally = Tally::default();
        if !timestamps.is_empty() {
            // All of them are visible by now; none was later than this.
            let now = unix_now();
            let lags = timestamps.drain(..).filter_map(|timestamp| lag(now, timestamp));
            shared.lagged(lags.inspect(|lag| status.set_lag(*lag)));
        }
    }
}

/// Adds to a counter that only this stream's task writes, without an atomic read-modify-write.
fn add(counter: &AtomicU64, count: u64) {
    if count > 0 {
        counter.store(counter.load(Relaxed) + count, Relaxed);
    }
}

/// Seconds since 1970.
fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(f64::NAN, |now| now.as_secs_f64())
}

/// Time since the engine's timestamp, if its clock is plausible.
fn lag(now: f64, timestamp: f64) -> Option<Duration> {
    let lag = now - timestamp;
    (lag.abs() < PLAUSIBLE).then(|| Duration::from_secs_f64(lag.max(0.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_clocks_have_no_lag() {
        let now = unix_now();
        assert!(lag(now, now - 3.0).is_some_and(|lag| (2.9..3.1).contains(&lag.as_secs_f64())));
        assert_eq!(lag(now, now + 100.0), Some(Duration::ZERO));
        for other in [0.0, 5000.0, now * 1000.0, f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(lag(now, other), None, "{other}");
        }
    }
}
