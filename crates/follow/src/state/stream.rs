//! Event stream of one engine rank, shared by its task, queries and snapshots; and its registration, as made by a
//! client or by discovery (the automatic registration of engines).

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

/// Maximum number of ranks whose blocks one stream may supply, more than any engine has behind one socket.
const MOST_RANKS: usize = 1024;

/// Event stream of one engine rank, shared by its task, queries and snapshots.
pub struct Stream {
    /// Name of the worker.
    pub worker: Arc<str>,
    /// Registration of the stream.
    pub registration: Registration,
    /// Status of the stream: its state, doubts such as lost batches, counters and errors.
    pub status: StreamStatus,
    /// Ranks whose blocks the stream supplies.
    ranks: Mutex<BTreeSet<u32>>,
    /// Blocks that the engine was proved to hold although no batch has announced them.
    proven: Mutex<ProvenBlocks>,
    /// Channel for requests to the stream's task for a copy of the held blocks.
    copies: Copies,
    /// Queue of the changes to be published to the NATS log; unset if the stream is not published.
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

    /// Returns the ranks whose blocks the stream supplies: the registered rank, and the ranks named in its batches.
    #[must_use]
    pub fn ranks(&self) -> BTreeSet<u32> {
        self.ranks.lock().clone()
    }

    /// Locks the proofs of held blocks. No batch of the stream is applied while the guard exists.
    pub(crate) fn proven_blocks(&self) -> MutexGuard<'_, ProvenBlocks> {
        self.proven.lock()
    }

    pub(crate) fn copies(&self) -> &Copies {
        &self.copies
    }

    /// Returns the queue of the changes to be published to the NATS log; `None` if the stream is not published.
    pub(crate) fn outlet(&self) -> Option<&Arc<Outlet>> {
        self.outlet.get()
    }

    pub(crate) fn set_outlet(&self, outlet: Arc<Outlet>) {
        let _ = self.outlet.set(outlet);
    }

    pub(crate) fn feeds(&self, rank: u32) -> bool {
        self.ranks.lock().contains(&rank)
    }

    /// Adds a rank to the ranks whose blocks the stream supplies. Returns false if the stream has the maximum number of
    /// ranks already.
    pub(super) fn feed(&self, rank: u32) -> bool {
        let mut ranks = self.ranks.lock();
        let room = ranks.len() < MOST_RANKS;
        if room {
            ranks.insert(rank);
        }
        room
    }

    /// Creates a stream that no task follows, for tests.
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

/// Proofs of the blocks that the ranks of one stream hold although no batch has announced them. The stream's task
/// changes the proofs and the index under one lock, so that adoption (adding proved blocks to the index) finds both
/// consistent.
#[derive(Default)]
pub(crate) struct ProvenBlocks {
    /// Index into which the stream's blocks are stored; `None` while no task follows the stream.
    index: Option<Arc<BlockIndex>>,
    ranks: BTreeMap<u32, RankAdoption>,
}

impl ProvenBlocks {
    /// Drops all proofs of held blocks, and sets the index into which the stream's blocks are stored from now on.
    /// `None` means that no task follows the stream any more.
    pub(crate) fn begin(&mut self, index: Option<Arc<BlockIndex>>) {
        *self = Self { index, ranks: BTreeMap::new() };
    }

    /// Drops all proofs of held blocks, because the stream's blocks were cleared and its engine may have restarted.
    pub(crate) fn forget(&mut self) {
        self.ranks.values_mut().for_each(RankAdoption::begin);
    }

    /// Returns the proofs of held blocks for one rank, which are created if there are none.
    pub(crate) fn of(&mut self, rank: u32) -> &mut RankAdoption {
        self.ranks.entry(rank).or_default()
    }

    /// Calls `f` for each rank with the index and the rank's proofs of held blocks, if a task follows the stream.
    pub(crate) fn each(&mut self, mut f: impl FnMut(&Arc<BlockIndex>, u32, &mut RankAdoption)) {
        if let Some(index) = &self.index {
            self.ranks.iter_mut().for_each(|(rank, proven)| f(index, *rank, proven));
        }
    }

    /// Iterates over the proofs of held blocks of all ranks.
    pub(crate) fn all(&self) -> impl Iterator<Item = &RankAdoption> {
        self.ranks.values()
    }
}

/// Maximum number of aliases of a model, and also of its LoRA adapters.
const MOST_NAMES: usize = 1024;

/// Names by which a model can be found in addition to its own: aliases and LoRA adapters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelNames {
    /// Aliases of the model.
    pub aliases: Vec<String>,
    /// Names of the model's LoRA adapters.
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

/// Registration of the event stream of one engine rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// Name of the worker.
    pub worker: String,
    /// Name of the model.
    pub model: String,
    /// Aliases and LoRA adapters that the worker's engine serves; `None` to leave the worker's names unchanged.
    pub names: Option<ModelNames>,
    /// Name of the routing group.
    pub routing_group: String,
    /// Number of tokens in a block.
    pub block_size: u32,
    /// Data-parallel rank under which blocks are stored, unless a batch names another rank whose blocks no other stream
    /// supplies.
    pub rank: u32,
    /// Address of the engine's event socket.
    pub endpoint: Endpoint,
    /// Address of the engine's replay socket; `None` if the engine has none.
    pub replay_endpoint: Option<Endpoint>,
    /// Topic of the engine's batches, which must match as a whole; empty for any topic. For an engine that connects to
    /// the service, an empty topic matches only the empty topic.
    pub topic: String,
    /// True if a block that was announced n times counts as held until it is removed n times. False for engines that
    /// announce a block again without adding a copy.
    pub count_copies: bool,
    /// Number of blocks in a chunk (the unit of storage) of the engine's host memory. `None` to learn it from store
    /// events, which do not show it if they contain block hashes alone.
    pub host_chunk: Option<NonZeroU32>,
    /// Origin of the registration: `zmq` for a client of the HTTP interface, else the engine's URL, or `stream` for a
    /// configured stream.
    pub source: String,
}

impl Registration {
    /// Checks that the values of the registration are valid, such as its names and its block size.
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

    /// Checks that another registration of the same rank has the same values as this one.
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
