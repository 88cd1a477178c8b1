//! Blocks of a prompt that engines hold by the index of this process: as they are looked up, and as they were when the
//! request was placed.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use kvatlas_follow::lookup::RankDepths;
use kvatlas_follow::state::{Keyspace, Stream};

use crate::engines::Engine;
use crate::engines::fleet::EngineTable;
use crate::requests::facts::DialectBlocks;

/// Finds how much of a prompt each rank holds: of the prompt that its engine makes of the request.
pub(super) fn look_up(
    keyspace: &Keyspace,
    hashes: &[u64],
    others: &[DialectBlocks],
    engines: &EngineTable,
    held: &mut Vec<RankDepths>,
) {
    if others.is_empty() {
        return keyspace.look_up(hashes, |worker, rank| engines.number(worker, rank), held);
    }
    let is_of =
        |worker: &str, is_wanted: &dyn Fn(&Engine) -> bool| engines.get(worker).is_some_and(|engine| is_wanted(engine));
    let has_main = |engine: &Engine| !others.iter().any(|other| other.dialect == engine.dialect());
    let of_main = |worker: &str, rank| is_of(worker, &has_main).then(|| engines.number(worker, rank))?;
    keyspace.look_up(hashes, of_main, held);
    let mut found = Vec::new();
    for other in others {
        let has_it = |engine: &Engine| engine.dialect() == other.dialect;
        let of_other = |worker: &str, rank| is_of(worker, &has_it).then(|| engines.number(worker, rank))?;
        keyspace.look_up(&other.hashes, of_other, &mut found);
        held.append(&mut found);
    }
}

/// The blocks of a prompt that an engine held, and what it had lost by then.
pub(super) struct HeldThen {
    stream: Arc<Stream>,
    lost: u64,
    /// Blocks that can be taken from its cache; none if that is not known to be comparable.
    pub(super) blocks: Option<u32>,
}

impl HeldThen {
    /// Records the blocks held now; none if the rank is not followed, or its stream is not trusted.
    pub(super) fn new(keyspace: &Keyspace, worker: &str, rank: u32, blocks: Option<u32>) -> Option<Self> {
        let stream = keyspace.stream(worker, rank).filter(|stream| stream.status.is_trusted())?;
        let blocks = blocks.filter(|_| !stream.status.upper_bound.load(Relaxed));
        Some(Self { lost: lost(&stream), stream, blocks })
    }

    /// True if the engine may have lost blocks since.
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
