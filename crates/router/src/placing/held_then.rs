//! The blocks of a prompt that an engine held when its request was placed there, by the index in this process. Its report
//! of what it had cached is held against that.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use kvatlas_follow::state::{Keyspace, Stream};

/// The blocks of a prompt that an engine held, and what it had lost by then.
pub(super) struct HeldThen {
    stream: Arc<Stream>,
    lost: u64,
    /// Blocks that can be taken from its cache; none if that is not known to be comparable.
    pub(super) blocks: Option<u32>,
}

impl HeldThen {
    /// None if nobody follows the rank, or its stream is not trusted.
    pub(super) fn new(keyspace: &Keyspace, worker: &str, rank: u32, blocks: Option<u32>) -> Option<Self> {
        let stream = keyspace.stream(worker, rank).filter(|stream| stream.status.is_trusted())?;
        let blocks = blocks.filter(|_| !stream.status.upper_bound.load(Relaxed));
        Some(Self { lost: lost(&stream), stream, blocks })
    }

    /// True if the engine may have lost some of it since.
    pub(super) fn may_be_gone(&self) -> bool {
        lost(&self.stream) != self.lost || !self.stream.status.is_trusted()
    }
}

/// A number that changes when a stream's engine loses blocks, or may have. Events of other cache groups say little of which
/// prompts they shorten.
fn lost(stream: &Stream) -> u64 {
    let (status, counters) = (&stream.status, &stream.status.counters);
    let all = [&counters.removed_blocks, &counters.clears, &counters.resets, &counters.group_events, &status.epoch];
    all.iter().map(|count| count.load(Relaxed)).fold(0, u64::wrapping_add)
}
