//! Event stream of one engine rank, as its task, queries and snapshots share it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use kvatlas_adopt::RankAdoption;
use kvatlas_index::BlockIndex;
use parking_lot::{Mutex, MutexGuard};

use super::registration::Registration;
use super::saved::Copies;
use super::status::StreamStatus;
use crate::relay::Outlet;

/// Number of ranks that one stream may feed: more than any engine has behind one socket.
const MOST_RANKS: usize = 1024;

/// Event stream of one engine rank.
pub struct Stream {
    /// The worker's name.
    pub worker: Arc<str>,
    /// The registration of the stream.
    pub registration: Registration,
    /// The status of the stream.
    pub status: StreamStatus,
    /// Ranks that the stream feeds.
    ranks: Mutex<BTreeSet<u32>>,
    /// Blocks that the stream has proved without announcing them.
    proven: Mutex<ProvenBlocks>,
    /// Channel of requests to the task for a copy of the holdings.
    copies: Copies,
    /// Queue of the changes to be published, if they are.
    outlet: OnceLock<Arc<Outlet>>,
}

impl Stream {
    pub(crate) fn new(worker: Arc<str>, registration: Registration) -> Self {
        let ranks = Mutex::new(BTreeSet::from([registration.rank]));
        let copies = Copies::default();
        Self {
            worker,
            registration,
            status: StreamStatus::default(),
            ranks,
            proven: Mutex::default(),
            copies,
            outlet: OnceLock::new(),
        }
    }

    /// Ranks that the stream feeds: the registered one, and those that its batches name.
    #[must_use]
    pub fn ranks(&self) -> BTreeSet<u32> {
        self.ranks.lock().clone()
    }

    /// Blocks that the ranks have proved. No batch of the stream is applied while the guard is held.
    pub(crate) fn proven_blocks(&self) -> MutexGuard<'_, ProvenBlocks> {
        self.proven.lock()
    }

    pub(crate) fn copies(&self) -> &Copies {
        &self.copies
    }

    /// Queue of the changes to be published, if they are.
    pub(crate) fn outlet(&self) -> Option<&Arc<Outlet>> {
        self.outlet.get()
    }

    pub(crate) fn set_outlet(&self, outlet: Arc<Outlet>) {
        let _ = self.outlet.set(outlet);
    }

    pub(crate) fn feeds(&self, rank: u32) -> bool {
        self.ranks.lock().contains(&rank)
    }

    /// Feeds one more rank. False if the stream feeds too many already.
    pub(super) fn feed(&self, rank: u32) -> bool {
        let mut ranks = self.ranks.lock();
        let room = ranks.len() < MOST_RANKS;
        if room {
            ranks.insert(rank);
        }
        room
    }

    /// A stream without a task.
    #[cfg(test)]
    pub(crate) fn for_test(worker: &str, rank: u32) -> Arc<Self> {
        let registration = Registration {
            names: None,
            worker: worker.to_owned(),
            model: "m".to_owned(),
            routing_group: "g".to_owned(),
            block_size: 4,
            rank,
            endpoint: "tcp://127.0.0.1:9".parse().expect("an endpoint"),
            replay_endpoint: None,
            topic: String::new(),
            count_copies: true,
            host_chunk: None,
            source: "zmq".to_owned(),
        };
        Arc::new(Self::new(worker.into(), registration))
    }
}

/// Blocks that the ranks of one stream have proved. The stream's task changes them together with the index, under one lock,
/// so that adoption finds the two consistent.
#[derive(Default)]
pub(crate) struct ProvenBlocks {
    /// Index that the stream feeds, while it is followed.
    index: Option<Arc<BlockIndex>>,
    ranks: BTreeMap<u32, RankAdoption>,
}

impl ProvenBlocks {
    /// Begins anew with the index of a stream that is followed from now on, or without one.
    pub(crate) fn begin(&mut self, index: Option<Arc<BlockIndex>>) {
        *self = Self { index, ranks: BTreeMap::new() };
    }

    /// Forgets all proofs: the stream's blocks are gone, and perhaps the engine is another one.
    pub(crate) fn forget(&mut self) {
        self.ranks.values_mut().for_each(RankAdoption::begin);
    }

    /// Proofs of one rank.
    pub(crate) fn of(&mut self, rank: u32) -> &mut RankAdoption {
        self.ranks.entry(rank).or_default()
    }

    /// Calls `f` with each rank, if the stream is followed.
    pub(crate) fn each(&mut self, mut f: impl FnMut(&Arc<BlockIndex>, u32, &mut RankAdoption)) {
        if let Some(index) = &self.index {
            self.ranks.iter_mut().for_each(|(rank, proven)| f(index, *rank, proven));
        }
    }

    /// Proofs of each rank.
    pub(crate) fn all(&self) -> impl Iterator<Item = &RankAdoption> {
        self.ranks.values()
    }
}
