//! Limits on the memory that engines and clients can make the service use, and counts of how often each was reached.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use serde::Deserialize;

/// Upper limits on numbers of workers, streams and blocks, and on the size of buffers. The defaults are far above the
/// needs of a fleet of 1,000 engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsConfig {
    /// Maximum number of registered workers (engine instances).
    pub workers: usize,
    /// Maximum number of event streams, over all workers.
    pub streams: usize,
    /// Maximum number of keyspaces, each a pair of model and routing group.
    pub keyspaces: usize,
    /// Maximum number of blocks that one data-parallel rank of a worker may hold.
    pub blocks_per_rank: u64,
    /// Maximum number of blocks that all ranks of a worker together may hold.
    pub blocks_per_worker: u64,
    /// Maximum total size, in bytes, of the buffers of all streams together.
    pub buffer_bytes: usize,
}

/// Kind of limit, one for each field of [`LimitsConfig`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Limit {
    /// Limit on registered workers: [`LimitsConfig::workers`].
    Workers,
    /// Limit on event streams: [`LimitsConfig::streams`].
    Streams,
    /// Limit on keyspaces (pairs of model and routing group): [`LimitsConfig::keyspaces`].
    Keyspaces,
    /// Limit on the blocks of one rank: [`LimitsConfig::blocks_per_rank`].
    BlocksPerRank,
    /// Limit on the blocks of one worker: [`LimitsConfig::blocks_per_worker`].
    BlocksPerWorker,
    /// Limit on the size of all buffers: [`LimitsConfig::buffer_bytes`].
    BufferBytes,
}

impl Limit {
    /// All kinds of limits, in the order of their declaration.
    pub const ALL: [Self; 6] =
        [Self::Workers, Self::Streams, Self::Keyspaces, Self::BlocksPerRank, Self::BlocksPerWorker, Self::BufferBytes];

    /// Returns the name of the limit in the configuration, in HTTP answers and in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Workers => "workers",
            Self::Streams => "streams",
            Self::Keyspaces => "keyspaces",
            Self::BlocksPerRank => "blocks_per_rank",
            Self::BlocksPerWorker => "blocks_per_worker",
            Self::BufferBytes => "buffer_bytes",
        }
    }
}

/// Counts shared by all streams: bytes in their buffers, how often each limit was reached, and a histogram of the lags
/// of batches.
#[derive(Debug, Default)]
pub struct SharedCounts {
    buffered: AtomicUsize,
    reached: [AtomicU64; Limit::ALL.len()],
    lags: [AtomicU64; LAG_SECONDS.len() + 1],
    lag_micros: AtomicU64,
}

/// Upper bounds of the buckets in the histogram of batches' lags, in seconds. A lag is the time from the engine's
/// timestamp until queries see the batch.
pub const LAG_SECONDS: [f64; 14] =
    [1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2, 0.128, 0.256, 0.512, 1.0, 4.0, 16.0, 60.0];

impl SharedCounts {
    /// Returns the number of bytes in the buffers of all streams.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.buffered.load(Relaxed)
    }

    /// Returns the number of times that the limit `limit` was reached.
    #[must_use]
    pub fn reached(&self, limit: Limit) -> u64 {
        self.reached[limit as usize].load(Relaxed)
    }

    /// Adds lags of live batches to the histogram. A lag is the time from the engine's timestamp until queries see the
    /// batch. All streams share the histogram, so each stream records many batches at once.
    pub fn lagged(&self, lags: impl Iterator<Item = Duration>) {
        let (mut counts, mut micros) = ([0; LAG_SECONDS.len() + 1], 0);
        for lag in lags {
            let seconds = lag.as_secs_f64();
            counts[LAG_SECONDS.iter().position(|bound| seconds <= *bound).unwrap_or(LAG_SECONDS.len())] += 1;
            micros += lag.as_micros() as u64;
        }
        for (sum, count) in self.lags.iter().zip(counts).filter(|(_, count)| *count > 0) {
            sum.fetch_add(count, Relaxed);
        }
        if micros > 0 {
            self.lag_micros.fetch_add(micros, Relaxed);
        }
    }

    /// Returns the number of lags (times from the engine's timestamp until queries see a batch) in each bucket of
    /// [`LAG_SECONDS`] and above the last bucket, and the sum of all lags in seconds.
    pub fn lags(&self) -> (Vec<u64>, f64) {
        (self.lags.iter().map(|count| count.load(Relaxed)).collect(), self.lag_micros.load(Relaxed) as f64 / 1e6)
    }

    /// Counts that the limit `limit` was reached once more.
    pub fn count(&self, limit: Limit) {
        self.reached[limit as usize].fetch_add(1, Relaxed);
    }

    /// Records that `bytes` bytes were put into a stream's buffer. Returns the number of bytes in the buffers of all
    /// streams.
    pub fn add(&self, bytes: usize) -> usize {
        self.buffered.fetch_add(bytes, Relaxed) + bytes
    }

    /// Records that `bytes` bytes were taken out of a stream's buffer.
    pub fn sub(&self, bytes: usize) {
        self.buffered.fetch_sub(bytes, Relaxed);
    }
}
