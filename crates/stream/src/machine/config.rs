//! [`MachineConfig`]: the settings that a machine reads.

use std::time::Duration;

/// The settings that a machine reads: each is that of `StreamConfig` of the same name.
#[derive(Debug, Clone)]
pub struct MachineConfig {
    /// Silence, without an answer from the replay socket either, after which a stream is not trusted.
    pub stale_after: Duration,
    /// Silence after which the replay socket is asked whether all is well.
    pub probe_interval: Duration,
    /// Time until a replay must have delivered something.
    pub replay_timeout: Duration,
    /// Time that all replays for one purpose may take.
    pub replay_total_timeout: Duration,
    /// Number of replays for one purpose, before the stream goes on without.
    pub replay_attempts: u32,
    /// Time for which a missing batch may still come by itself.
    pub reorder_grace: Duration,
    /// Shortest pause between two attempts to connect or to ask.
    pub reconnect_min: Duration,
    /// Longest pause between two attempts to connect or to ask.
    pub reconnect_max: Duration,
    /// Number of batches that may wait.
    pub buffer_batches: usize,
    /// Bytes of the batches that may wait.
    pub buffer_bytes: usize,
    /// `limits.buffer_bytes`: bytes in the buffers of all streams.
    pub all_buffer_bytes: usize,
}
