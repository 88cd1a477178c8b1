//! Reports of a stream's latest batches: counts that are added to the stream's status from time to time, and warnings
//! that are logged once each.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kvatlas_stream::limits::SharedCounts;
use kvatlas_wire::Tally;

use super::holdings::Holdings;
use crate::state::StreamStatus;

/// Maximum plausible difference between the clocks of the engine and this machine, in seconds.
const PLAUSIBLE: f64 = 86_400.0;

/// Counts of a stream's latest batches, kept by the stream's task until all available messages have been read.
#[derive(Default)]
pub(super) struct PendingCounts {
    pub(super) batches: u64,
    pub(super) bytes: u64,
    pub(super) tally: Tally,
    /// Engine's timestamp of each live batch, in seconds since 1970.
    pub(super) timestamps: Vec<f64>,
}

impl PendingCounts {
    /// Adds the counts of the latest batches to the stream's status, and resets the counts to zero.
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

/// Adds to a counter without an atomic read-modify-write, as only the stream's task writes the counter.
fn add(counter: &AtomicU64, count: u64) {
    if count > 0 {
        counter.store(counter.load(Relaxed) + count, Relaxed);
    }
}

/// Returns the current time, in seconds since 1970.
fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(f64::NAN, |now| now.as_secs_f64())
}

/// Computes the time since an engine's timestamp; `None` if the timestamp differs from `now` by more than clocks may
/// plausibly differ.
fn lag(now: f64, timestamp: f64) -> Option<Duration> {
    let lag = now - timestamp;
    (lag.abs() < PLAUSIBLE).then(|| Duration::from_secs_f64(lag.max(0.0)))
}

/// Record of the warnings that have been logged for a stream, so that each is logged once.
#[derive(Debug, Default)]
pub(super) struct LoggedWarnings {
    unknown_events: bool,
    /// True if the warning about stored blocks whose parent has the block hash 0 was logged.
    parents: bool,
    /// True if the warning about batches with another topic was logged.
    topics: bool,
    /// True if the warning about blocks of another size than the index's was logged.
    sizes: bool,
}

impl Holdings {
    /// Logs that blocks were refused because their size differs from the index's. `size` is the most frequent of the
    /// other sizes, in tokens, and `blocks` the number of refused blocks of that size.
    pub(super) fn note_other_size(&mut self, size: u32, blocks: u64) {
        let status = &self.stream.status;
        status.set_other_size(size, blocks);
        let stored = status.counters.stored_blocks.load(Relaxed) + self.pending.tally.stored_blocks;
        if self.warned.sizes || blocks <= stored {
            return;
        }
        self.warned.sizes = true;
        let (worker, rank, indexed) = (&*self.stream.worker, self.stream.registration.rank, self.keyspace.block_size);
        tracing::warn!(
            worker,
            rank,
            "the engine's events have blocks of {size} tokens, and the size that is set or announced is {indexed}: blocks of \
             another size than {indexed} are left out"
        );
    }

    /// Reports a batch that is skipped because its topic, `its`, differs from the stream's. This is normal if several
    /// engines publish at one address. If no batch with the stream's topic has been received, the registered topic is
    /// probably wrong.
    pub(crate) fn note_other_topic(&mut self, its: &[u8]) {
        let (status, topic) = (&self.stream.status, &self.stream.registration.topic);
        if self.warned.topics || self.pending.batches > 0 || status.counters.batches.load(Relaxed) > 0 {
            return;
        }
        self.warned.topics = true;
        let its = String::from_utf8_lossy(its);
        status.set_error(format!(
            "batches of topic {its:?} are left out: the topic of this stream is {topic:?}, the whole of it"
        ));
        let (worker, rank) = (&*self.stream.worker, self.stream.registration.rank);
        tracing::warn!(
            worker,
            rank,
            "batches of topic {its:?} are left out, and none has come of {topic:?}, the topic of this stream: set it to the \
             whole topic of the engine, or leave it out"
        );
    }

    /// Reports that two topics are received by a stream that accepts any topic.
    pub(crate) fn note_several_topics(&mut self, first: &[u8], second: &[u8]) {
        let (first, second) = (String::from_utf8_lossy(first), String::from_utf8_lossy(second));
        let what = format!("batches of several topics come here, such as {first:?} and {second:?}");
        let (worker, rank) = (&*self.stream.worker, self.stream.registration.rank);
        if !std::mem::replace(&mut self.warned.topics, true) {
            tracing::warn!(worker, rank, "{what}: set the topic of the engine whose stream this is");
        }
        self.stream.status.set_error(what);
    }

    /// Sets an error for stored blocks whose parent has the block hash 0 and is not held, and logs it once.
    pub(super) fn warn_of_parents(&mut self) {
        let status = &self.stream.status;
        if status.last_error().is_none() {
            status.set_error("blocks continue a block named 0, which is not held: they do not count".to_owned());
        }
        if !std::mem::replace(&mut self.warned.parents, true) {
            let (worker, rank) = (&*self.stream.worker, self.stream.registration.rank);
            tracing::warn!(
                worker,
                rank,
                "the engine names block 0 as the parent of blocks, and has no such block: blocks that begin a prompt should \
                 have no parent. They and what follows them do not count, and the stream is marked as partial; a newer \
                 version of what publishes the events (LMCache?) may have none"
            );
        }
    }

    /// Logs, once, that the engine sends events of an unknown type. `what` describes the type.
    pub(super) fn warn_of_unknown_events(&mut self, what: &str) {
        if !std::mem::replace(&mut self.warned.unknown_events, true) {
            let (worker, rank) = (&*self.stream.worker, self.stream.registration.rank);
            tracing::warn!(
                worker,
                rank,
                what,
                "the engine publishes events of a type that this version does not know and that may remove blocks: \
                 each time, the stream's blocks are dropped; if more such events follow, the stream is not trusted; \
                 a newer version of kvatlas may know the type"
            );
        }
    }
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
