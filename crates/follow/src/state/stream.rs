//! One engine rank's event stream, as everybody sees it.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};

use super::copies::Copies;
use super::proven::ProvenBlocks;
use super::registration::Registration;
use super::status::StreamStatus;
use crate::relay::Outlet;

/// Number of ranks that one stream may feed: more than any engine has behind one socket.
const MOST_RANKS: usize = 1024;

/// One engine rank's events.
pub struct Stream {
    /// The worker's name.
    pub worker: Arc<str>,
    /// The registration of the stream.
    pub registration: Registration,
    /// The status of the stream: what is known about it.
    pub status: StreamStatus,
    /// Ranks that it feeds.
    ranks: Mutex<BTreeSet<u32>>,
    /// Blocks that it has proved without saying what they are.
    late: Mutex<ProvenBlocks>,
    /// The channel by which its task is asked for a copy of what it holds.
    copies: Copies,
    /// The outlet by which what it brings is published, if it is.
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
            late: Mutex::default(),
            copies,
            outlet: OnceLock::new(),
        }
    }

    /// The ranks that it feeds: the registered one, and those that its batches name.
    #[must_use]
    pub fn ranks(&self) -> BTreeSet<u32> {
        self.ranks.lock().clone()
    }

    /// The blocks that its ranks have proved. Nothing of it is applied while this is held.
    pub(crate) fn proven_blocks(&self) -> MutexGuard<'_, ProvenBlocks> {
        self.late.lock()
    }

    pub(crate) fn copies(&self) -> &Copies {
        &self.copies
    }

    /// The outlet by which what it brings is published, if it is.
    pub(crate) fn outlet(&self) -> Option<&Arc<Outlet>> {
        self.outlet.get()
    }

    pub(crate) fn set_outlet(&self, outlet: Arc<Outlet>) {
        let _ = self.outlet.set(outlet);
    }

    pub(crate) fn feeds(&self, rank: u32) -> bool {
        self.ranks.lock().contains(&rank)
    }

    /// Feeds one rank more. False if it feeds too many already.
    pub(super) fn feed(&self, rank: u32) -> bool {
        let mut ranks = self.ranks.lock();
        let room = ranks.len() < MOST_RANKS;
        if room {
            ranks.insert(rank);
        }
        room
    }

    /// A stream that nobody follows.
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
            source: "zmq".to_owned(),
        };
        Arc::new(Self::new(worker.into(), registration))
    }
}
