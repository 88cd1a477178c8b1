//! Event stream of one engine rank, as its task, queries and snapshots share it; and its registration, as given by a client
//! or by discovery.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::{Arc, OnceLock};

use kvatlas_adopt::RankAdoption;
use kvatlas_index::BlockIndex;
use parking_lot::{Mutex, MutexGuard};

use super::saved::Copies;
use super::status::StreamStatus;
use crate::endpoint::Endpoint;
use crate::error::Error;
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

/// Most aliases, and most adapters, of a model.
const MOST_NAMES: usize = 1024;

/// Names of a model besides its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelNames {
    /// Other names of the model.
    pub aliases: Vec<String>,
    /// Names of adapters of the model.
    pub adapters: Vec<String>,
}

impl ModelNames {
    fn check(&self) -> Result<(), Error> {
        for (what, names) in [("aliases", &self.aliases), ("adapters", &self.adapters)] {
            if names.len() > MOST_NAMES {
                let message = format!("{what} must be a list of at most {MOST_NAMES} names, got {}", names.len());
                return Err(Error::invalid("too_many_names", message));
            }
            if names.iter().any(String::is_empty) {
                return Err(Error::invalid("empty_name", format!("a name in {what} must not be empty")));
            }
        }
        Ok(())
    }
}

/// Registration of an engine rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// The worker's name.
    pub worker: String,
    /// The model's name.
    pub model: String,
    /// Aliases and adapters at the worker's engine; none to leave them as they are.
    pub names: Option<ModelNames>,
    /// The routing group.
    pub routing_group: String,
    /// Tokens in a block.
    pub block_size: u32,
    /// Data-parallel rank, unless batches name another rank that no other stream feeds.
    pub rank: u32,
    /// Endpoint of the engine's events.
    pub endpoint: Endpoint,
    /// Endpoint of the engine's replay socket.
    pub replay_endpoint: Option<Endpoint>,
    /// Topic of the engine's batches, compared as a whole; empty for any. For an engine that connects to this service, the
    /// empty topic is a topic like others.
    pub topic: String,
    /// True if a block announced n times is held until it is removed n times. Some engines announce a block again without
    /// another copy of it.
    pub count_copies: bool,
    /// Blocks that the engine keeps as one in host memory; none to learn it from its stores, which do not show it where they
    /// have names alone.
    pub host_chunk: Option<NonZeroU32>,
    /// Source of the registration: `zmq` for a client of the HTTP interface, else the engine's URL or `stream`.
    pub source: String,
}

impl Registration {
    /// Checks the values of the registration.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.block_size == 0 {
            let message = "block_size must be at least 1, got 0: it is the engine's number of tokens in a block";
            return Err(Error::invalid("invalid_block_size", message));
        }
        if self.replay_endpoint.as_ref().is_some_and(|replay| replay.bound_port().is_some()) {
            let message = "replay_endpoint must be tcp://HOST:PORT or ipc://PATH: the engine must listen there for replay requests";
            return Err(Error::invalid("invalid_endpoint", message));
        }
        for (what, name) in
            [("worker", &self.worker), ("model_name", &self.model), ("routing_group", &self.routing_group)]
        {
            if name.is_empty() {
                return Err(Error::invalid("empty_name", format!("{what} must not be empty")));
            }
        }
        self.names.as_ref().map_or(Ok(()), ModelNames::check)
    }

    /// Checks that another registration of the same rank is equal.
    pub(crate) fn check_same(&self, other: &Self) -> Result<(), Error> {
        let said = |it: &Self| {
            (it.endpoint.clone(), it.replay_endpoint.clone(), it.topic.clone(), it.count_copies, it.host_chunk)
        };
        if said(self) == said(other) {
            return Ok(());
        }
        let replay =
            self.replay_endpoint.as_ref().map_or_else(String::new, |replay| format!(" with replay at {replay}"));
        let message = format!(
            "rank {} of worker {:?} is registered at {}{replay}; unregister it first",
            self.rank, self.worker, self.endpoint
        );
        Err(Error::conflict("already_registered", message))
    }
}
