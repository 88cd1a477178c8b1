//! What is registered, and how it changes. The caller makes sure that changes come one after the other.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::runtime::Handle;

use crate::config::StreamConfig;
use crate::error::Error;
use crate::limits::{Limit, Shared};
use crate::state::{Keyspace, Registration, Stream, lock};
use crate::stream::{self, StreamHandle};

/// Whether a registration changed anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registering {
    /// It did.
    New,
    /// The same was registered already.
    Already,
}

/// What `/workers` shows of a worker.
pub struct WorkerView {
    /// The worker's name.
    pub name: Arc<str>,
    /// Where its blocks go.
    pub keyspace: Arc<Keyspace>,
    /// By registered rank.
    pub streams: Vec<(u32, Arc<Stream>)>,
}

/// A registered worker. Its keyspace knows its streams.
struct Worker {
    keyspace: Arc<Keyspace>,
    /// The tasks that follow its streams, by registered rank.
    tasks: BTreeMap<u32, StreamHandle>,
}

/// What an unregistration ends.
struct Ending {
    keyspace: Arc<Keyspace>,
    streams: Vec<Arc<Stream>>,
    tasks: Vec<StreamHandle>,
}

/// By model, then by routing group.
type Keyspaces = HashMap<Box<str>, HashMap<Box<str>, Arc<Keyspace>>>;

/// Workers and keyspaces.
pub(super) struct Registry {
    config: StreamConfig,
    runtime: Handle,
    workers: Mutex<BTreeMap<Arc<str>, Worker>>,
    keyspaces: ArcSwap<Keyspaces>,
}

impl Registry {
    pub(super) fn new(config: StreamConfig, runtime: Handle) -> Self {
        Self { config, runtime, workers: Mutex::default(), keyspaces: ArcSwap::default() }
    }

    pub(super) fn keyspace(&self, model: &str, routing_group: &str) -> Option<Arc<Keyspace>> {
        self.keyspaces.load().get(model)?.get(routing_group).cloned()
    }

    pub(super) fn keyspaces(&self) -> Vec<Arc<Keyspace>> {
        let mut all: Vec<_> = self.keyspaces.load().values().flat_map(|groups| groups.values().cloned()).collect();
        all.sort_by(|a, b| (&a.model, &a.routing_group).cmp(&(&b.model, &b.routing_group)));
        all
    }

    pub(super) fn workers(&self) -> Vec<WorkerView> {
        let view = |(name, worker): (&Arc<str>, &Worker)| WorkerView {
            name: name.clone(),
            keyspace: worker.keyspace.clone(),
            streams: worker.keyspace.streams_of(name),
        };
        lock(&self.workers).iter().map(view).collect()
    }

    pub(super) fn probe_interval(&self) -> Duration {
        self.config.probe_interval
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.config.shared
    }

    pub(super) fn register(&self, registration: Registration) -> Result<Registering, Error> {
        registration.check()?;
        let mut workers = lock(&self.workers);
        let mut name: Arc<str> = registration.worker.as_str().into();
        let rank = registration.rank;
        if let Some((known, worker)) = workers.get_key_value(&name) {
            same_keyspace(&worker.keyspace, &registration)?;
            if let Some(feeder) = worker.keyspace.stream(known, rank) {
                return already(&feeder, &registration);
            }
            name = known.clone();
        } else if workers.len() >= self.config.limits.workers {
            return Err(self.full(Limit::Workers, self.config.limits.workers));
        }
        if workers.values().map(|worker| worker.tasks.len()).sum::<usize>() >= self.config.limits.streams {
            return Err(self.full(Limit::Streams, self.config.limits.streams));
        }
        let keyspace = self.keyspace_for(&registration)?;
        let stream = Arc::new(Stream::new(name.clone(), registration));
        // Another stream may have come to feed the rank just now.
        if let Err(feeder) = keyspace.add(&stream) {
            return already(&feeder, &stream.registration);
        }
        let task = stream::spawn(&self.runtime, self.config.clone(), keyspace.clone(), stream.clone());
        let Registration { worker, model, routing_group, endpoint, source, .. } = &stream.registration;
        tracing::info!(worker, rank, model, routing_group, %endpoint, source, "registered");
        workers.entry(name).or_insert_with(|| Worker { keyspace, tasks: BTreeMap::new() }).tasks.insert(rank, task);
        Ok(Registering::New)
    }

    /// The keyspace of a registration, made if it is not there.
    fn keyspace_for(&self, registration: &Registration) -> Result<Arc<Keyspace>, Error> {
        let Registration { model, routing_group, block_size, .. } = registration;
        if let Some(keyspace) = self.keyspace(model, routing_group) {
            if keyspace.block_size == *block_size {
                return Ok(keyspace);
            }
            if keyspace.has_streams() {
                let message = format!(
                    "model {model:?} in routing group {routing_group:?} has blocks of {} tokens, not {block_size}",
                    keyspace.block_size
                );
                return Err(Error::conflict("block_size_mismatch", message));
            }
        }
        let keyspace = Arc::new(Keyspace::new(model, routing_group, *block_size)?);
        let mut keyspaces = Keyspaces::clone(&self.keyspaces.load());
        // Keyspaces are kept when their last worker leaves, so that queries for them are still answered.
        let count = |keyspaces: &Keyspaces| keyspaces.values().map(HashMap::len).sum::<usize>();
        let most = self.config.limits.keyspaces;
        if count(&keyspaces) >= most {
            keyspaces.retain(|_, groups| {
                groups.retain(|_, keyspace| keyspace.has_streams());
                !groups.is_empty()
            });
            let takes_place =
                keyspaces.get(model.as_str()).is_some_and(|groups| groups.contains_key(routing_group.as_str()));
            if count(&keyspaces) >= most && !takes_place {
                return Err(self.full(Limit::Keyspaces, most));
            }
        }
        keyspaces.entry(model.as_str().into()).or_default().insert(routing_group.as_str().into(), keyspace.clone());
        self.keyspaces.store(Arc::new(keyspaces));
        Ok(keyspace)
    }

    fn full(&self, limit: Limit, most: usize) -> Error {
        self.config.shared.count(limit);
        let name = limit.name();
        tracing::warn!(limit = name, most, "a registration is refused: a limit is reached");
        Error::conflict("limit_reached", format!("there are {most} {name} already, the most that limits.{name} allows"))
    }

    pub(super) async fn unregister(
        &self,
        name: &str,
        within: Option<(&str, Option<&str>)>,
        rank: Option<u32>,
    ) -> Result<usize, Error> {
        let Ending { keyspace, streams, tasks } = self.ending(name, within, rank)?;
        // The streams stay listed until nothing of them can be applied any more; then they go with what they held.
        for task in tasks {
            task.stop().await;
        }
        let ranks: Vec<u32> = streams.iter().map(|stream| stream.registration.rank).collect();
        let mut workers = lock(&self.workers);
        if keyspace.streams_of(name).len() == streams.len() {
            keyspace.index.drop_worker(name);
            workers.remove(name);
        } else {
            for rank in streams.iter().flat_map(|stream| stream.ranks()) {
                keyspace.index.clear(name, Some(rank), None);
            }
        }
        keyspace.remove(name, &ranks);
        tracing::info!(worker = name, ?ranks, "unregistered");
        Ok(ranks.len())
    }

    /// The streams to be ended, with their tasks.
    fn ending(&self, name: &str, within: Option<(&str, Option<&str>)>, rank: Option<u32>) -> Result<Ending, Error> {
        let mut workers = lock(&self.workers);
        let found = workers.get_mut(name).filter(|worker| {
            within.is_none_or(|(model, group)| {
                *worker.keyspace.model == *model && group.is_none_or(|group| *worker.keyspace.routing_group == *group)
            })
        });
        let Some(worker) = found else {
            let within = within.map_or_else(String::new, |(model, group)| {
                let group =
                    group.map_or_else(|| "any routing group".to_owned(), |group| format!("routing group {group:?}"));
                format!(" for model {model:?} in {group}")
            });
            return Err(Error::unknown("unknown_worker", format!("worker {name:?} is not registered{within}")));
        };
        let keyspace = worker.keyspace.clone();
        let streams: Vec<_> = match rank {
            None => keyspace.streams_of(name).into_iter().map(|(_, stream)| stream).collect(),
            Some(rank) => {
                let unknown = || Error::unknown("unknown_rank", format!("worker {name:?} has no rank {rank}"));
                vec![keyspace.stream(name, rank).ok_or_else(unknown)?]
            }
        };
        let tasks = streams.iter().filter_map(|stream| worker.tasks.remove(&stream.registration.rank)).collect();
        Ok(Ending { keyspace, streams, tasks })
    }

    /// Ends all tasks; nothing is forgotten.
    pub(super) async fn stop(&self) {
        let tasks: Vec<_> = lock(&self.workers)
            .values_mut()
            .flat_map(|worker| std::mem::take(&mut worker.tasks).into_values())
            .collect();
        for task in tasks {
            task.stop().await;
        }
    }
}

/// A stream feeds the rank of a registration already: fine if it is the same.
fn already(feeder: &Stream, registration: &Registration) -> Result<Registering, Error> {
    let Registration { rank, worker, .. } = registration;
    if feeder.registration.rank == *rank {
        return feeder.registration.check_same(registration).map(|()| Registering::Already);
    }
    let message = format!(
        "rank {rank} of worker {worker:?} is fed already by {}, whose batches name that rank",
        feeder.registration.endpoint
    );
    Err(Error::conflict("rank_taken", message))
}

fn same_keyspace(keyspace: &Keyspace, registration: &Registration) -> Result<(), Error> {
    let Keyspace { model, routing_group, block_size, .. } = keyspace;
    if **model == *registration.model
        && **routing_group == *registration.routing_group
        && *block_size == registration.block_size
    {
        return Ok(());
    }
    let code = if *block_size == registration.block_size { "other_keyspace" } else { "block_size_mismatch" };
    let message = format!(
        "worker {:?} is registered for model {model:?} in routing group {routing_group:?} with blocks of {block_size} \
         tokens",
        registration.worker
    );
    Err(Error::conflict(code, message))
}
