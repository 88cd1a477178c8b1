//! [`MachineConfig`]: the settings that a machine reads, and times that nobody sets.

use std::time::Duration;

/// Time after going live until the engine is asked for what was published before the subscription took effect.
pub(super) const SOON: Duration = Duration::from_millis(500);
/// Longest wait between two attempts to make a partial stream whole.
pub(super) const HEAL_MAX: Duration = Duration::from_secs(600);

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
