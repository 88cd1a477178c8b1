//! Limits on the memory that engines and clients can make the service use, and counts of how often each was reached.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use serde::Deserialize;

/// Upper limits on workers, streams, blocks and buffers. The defaults are far beyond a fleet of 1,000 engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsConfig {
    /// Maximum number of registered workers.
    pub workers: usize,
    /// Maximum number of streams, over all workers.
    pub streams: usize,
    /// Maximum number of keyspaces, each a pair of model and routing group.
    pub keyspaces: usize,
    /// Maximum number of blocks that one rank of a worker may hold.
    pub blocks_per_rank: u64,
    /// Maximum number of blocks that all ranks of a worker together may hold.
    pub blocks_per_worker: u64,
    /// Maximum number of bytes in the buffers of all streams together.
    pub buffer_bytes: usize,
}

/// A limit of [`LimitsConfig`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Limit {
    /// Limit on registered workers: [`LimitsConfig::workers`].
    Workers,
    /// Limit on streams: [`LimitsConfig::streams`].
    Streams,
    /// Limit on keyspaces: [`LimitsConfig::keyspaces`].
    Keyspaces,
    /// Limit on the blocks of one rank: [`LimitsConfig::blocks_per_rank`].
    BlocksPerRank,
    /// Limit on the blocks of one worker: [`LimitsConfig::blocks_per_worker`].
    BlocksPerWorker,
    /// Limit on the bytes in buffers: [`LimitsConfig::buffer_bytes`].
    BufferBytes,
}

impl Limit {
    /// All limits, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Workers, Self::Streams, Self::Keyspaces, Self::BlocksPerRank, Self::BlocksPerWorker, Self::BufferBytes];

    /// Name of the limit in the configuration, answers and metrics.
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

/// Counts shared by all streams: bytes in their buffers, how often each limit was reached, and lags of batches.
#[derive(Debug, Default)]
pub struct SharedCounts {
    buffered: AtomicUsize,
    reached: [AtomicU64; Limit::ALL.len()],
    lags: [AtomicU64; LAG_SECONDS.len() + 1],
    lag_micros: AtomicU64,
}

/// Upper bounds of the histogram's buckets for lags, in seconds.
pub const LAG_SECONDS: [f64; 14] =
    [1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2, 0.128, 0.256, 0.512, 1.0, 4.0, 16.0, 60.0];

impl SharedCounts {
    /// Number of bytes in the buffers of all streams.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.buffered.load(Relaxed)
    }

    /// Number of times that a limit was reached.
    #[must_use]
    pub fn reached(&self, limit: Limit) -> u64 {
        self.reached[limit as usize].load(Relaxed)
    }

    /// Records lags of live batches: times from the engine's timestamp until queries see the batch. As all streams
    /// share these counts, each records many batches at once.
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

    /// Number of lags in each bucket of [`LAG_SECONDS`] and beyond, and the sum of all lags in seconds.
    pub fn lags(&self) -> (Vec<u64>, f64) {
        (self.lags.iter().map(|count| count.load(Relaxed)).collect(), self.lag_micros.load(Relaxed) as f64 / 1e6)
    }

    /// Counts that this limit was reached.
    pub fn count(&self, limit: Limit) {
        self.reached[limit as usize].fetch_add(1, Relaxed);
    }

    /// Adds bytes that were put into a buffer. Returns the number of bytes in all buffers.
    pub fn add(&self, bytes: usize) -> usize {
        self.buffered.fetch_add(bytes, Relaxed) + bytes
    }

    /// Subtracts bytes that were taken out of a buffer.
    pub fn sub(&self, bytes: usize) {
        self.buffered.fetch_sub(bytes, Relaxed);
    }
}
