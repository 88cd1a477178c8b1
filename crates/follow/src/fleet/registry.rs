//! Registry of workers and their streams, and the changes that registrations make to it. The caller makes one change at
//! a time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::names::Names;
use crate::config::PoolConfig;
use crate::context::StreamContext;
use crate::error::Error;
use crate::relay::Relay;
use crate::snapshot::Snapshots;
use crate::state::{Keyspace, ModelNames, Registration, Stream};
use crate::stream::{self, Publishers, StreamHandle};
use kvatlas_stream::limits::{Limit, SharedCounts};

/// Outcome of a successful registration of an engine's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegistrationOutcome {
    /// The stream was not registered before, and has been added.
    New,
    /// The stream was already registered with equal values, and nothing was changed.
    Already,
}

/// Description of a worker, for the answer to `/workers`.
pub struct WorkerView {
    /// Name of the worker.
    pub name: Arc<str>,
    /// Keyspace (model and routing group) that has the worker's blocks.
    pub keyspace: Arc<Keyspace>,
    /// Aliases and LoRA adapters of the worker's model.
    pub names: Arc<ModelNames>,
    /// Streams of the worker, each with its registered rank.
    pub streams: Vec<(u32, Arc<Stream>)>,
}

/// Registered worker, with the tasks that follow its streams. The streams themselves are stored in the worker's
/// keyspace (the index of its model and routing group).
struct Worker {
    keyspace: Arc<Keyspace>,
    names: Arc<ModelNames>,
    /// Tasks that follow the worker's streams, by registered rank.
    tasks: BTreeMap<u32, StreamHandle>,
}

/// Streams that an unregistration is about to end, with their tasks and the keyspace (index) that has their blocks.
struct Ending {
    keyspace: Arc<Keyspace>,
    streams: Vec<Arc<Stream>>,
    tasks: Vec<StreamHandle>,
}

/// Keyspaces (indexes with their streams), by model name and then by routing group.
pub(super) type Keyspaces = HashMap<Box<str>, HashMap<Box<str>, Arc<Keyspace>>>;

/// Registry of workers, and of the keyspaces (one index per model and routing group) that have their blocks.
pub(super) struct Registry {
    context: StreamContext,
    publishers: Arc<Publishers>,
    runtime: Handle,
    workers: Mutex<BTreeMap<Arc<str>, Worker>>,
    pub(super) keyspaces: ArcSwap<Keyspaces>,
    /// Aliases of models and names of LoRA adapters, by which models are found; replaced only while the lock of
    /// `workers` is held.
    pub(super) names: ArcSwap<Names>,
    /// True if the next registration must panic, for tests.
    #[cfg(test)]
    pub(super) fail: std::sync::atomic::AtomicBool,
}

/// Guard of a stream that was just added to its keyspace (the index of a model and routing group). Removes the stream
/// again if the registration fails before it is complete.
struct NewStream<'a>(Option<(&'a Keyspace, &'a Stream)>);

impl NewStream<'_> {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for NewStream<'_> {
    fn drop(&mut self) {
        if let Some((keyspace, stream)) = self.0 {
            keyspace.remove(&stream.worker, &[stream.registration.rank]);
        }
    }
}

impl Registry {
    pub(super) fn new(context: StreamContext, runtime: Handle) -> Self {
        Self {
            publishers: Publishers::new(context.config.limits.streams),
            context,
            runtime,
            workers: Mutex::default(),
            keyspaces: ArcSwap::default(),
            names: ArcSwap::default(),
            #[cfg(test)]
            fail: std::sync::atomic::AtomicBool::new(false),
        }
    }

    /// Rebuilds `names`, the table of the names by which models are found, after a worker was added or removed or the
    /// names of its model changed.
    fn refresh_names(&self, workers: &BTreeMap<Arc<str>, Worker>) {
        let named =
            workers.values().map(|worker| (&*worker.keyspace.routing_group, &*worker.keyspace.model, &*worker.names));
        self.names.store(Arc::new(Names::of(named)));
    }

    /// Sets the aliases and LoRA adapters of a worker's model, if `names` is given.
    fn rename(&self, workers: &mut BTreeMap<Arc<str>, Worker>, name: &str, names: Option<&ModelNames>) {
        let (Some(worker), Some(names)) = (workers.get_mut(name), names) else { return };
        if *worker.names != *names {
            worker.names = Arc::new(names.clone());
            self.refresh_names(workers);
        }
    }

    pub(super) fn keyspace(&self, model: &str, routing_group: &str) -> Option<Arc<Keyspace>> {
        self.keyspaces.load().get(model)?.get(routing_group).cloned()
    }

    pub(super) fn keyspaces(&self) -> Vec<Arc<Keyspace>> {
        let mut all: Vec<_> = self.keyspaces.load().values().flat_map(|groups| groups.values().cloned()).collect();
        all.sort_by(|a, b| (&a.model, &a.routing_group).cmp(&(&b.model, &b.routing_group)));
        all
    }

    pub(super) fn has_workers(&self) -> bool {
        !self.workers.lock().is_empty()
    }

    pub(super) fn workers(&self) -> Vec<WorkerView> {
        let view = |(name, worker): (&Arc<str>, &Worker)| WorkerView {
            name: name.clone(),
            keyspace: worker.keyspace.clone(),
            names: worker.names.clone(),
            streams: worker.keyspace.streams_of(name),
        };
        self.workers.lock().iter().map(view).collect()
    }

    pub(super) fn pools(&self) -> &[PoolConfig] {
        &self.context.config.pools
    }

    pub(super) fn probe_interval(&self) -> Duration {
        self.context.config.probe_interval
    }

    pub(super) fn publishers(&self) -> &Arc<Publishers> {
        &self.publishers
    }

    pub(super) fn snapshots(&self) -> &Arc<Snapshots> {
        &self.context.snapshots
    }

    pub(super) fn relay(&self) -> &Arc<Relay> {
        &self.context.relay
    }

    pub(super) fn shared(&self) -> &SharedCounts {
        &self.context.shared
    }

    pub(super) fn register(&self, registration: Registration) -> Result<RegistrationOutcome, Error> {
        registration.check()?;
        let mut workers = self.workers.lock();
        let mut name: Arc<str> = registration.worker.as_str().into();
        let rank = registration.rank;
        if let Some((known, worker)) = workers.get_key_value(&name) {
            same_keyspace(&worker.keyspace, &registration)?;
            if let Some(feeder) = worker.keyspace.stream(known, rank) {
                let same = already(&feeder, &registration)?;
                self.rename(&mut workers, &name, registration.names.as_ref());
                return Ok(same);
            }
            name = known.clone();
        } else if workers.len() >= self.context.config.limits.workers {
            return Err(self.full(Limit::Workers, self.context.config.limits.workers));
        }
        if workers.values().map(|worker| worker.tasks.len()).sum::<usize>() >= self.context.config.limits.streams {
            return Err(self.full(Limit::Streams, self.context.config.limits.streams));
        }
        self.check_bound(&registration, &workers)?;
        let keyspace = self.keyspace_for(&registration)?;
        let stream = Arc::new(Stream::new(name.clone(), registration));
        // Another stream may have come to feed the rank just now.
        if let Err(feeder) = keyspace.add(&stream) {
            return already(&feeder, &stream.registration);
        }
        // Should anything fail from here on, nothing is left that nobody follows.
        let added = NewStream(Some((&keyspace, &stream)));
        #[cfg(test)]
        assert!(!self.fail.swap(false, std::sync::atomic::Ordering::Relaxed), "as the test wants it");
        let task = stream::spawn(
            &self.runtime,
            self.context.clone(),
            self.publishers.clone(),
            keyspace.clone(),
            stream.clone(),
        );
        let Registration { worker, model, routing_group, endpoint, source, .. } = &stream.registration;
        tracing::info!(worker, rank, model, routing_group, %endpoint, source, "registered");
        added.keep();
        let new = || Worker { keyspace, names: Arc::default(), tasks: BTreeMap::new() };
        workers.entry(name.clone()).or_insert_with(new).tasks.insert(rank, task);
        self.rename(&mut workers, &name, stream.registration.names.as_ref());
        Ok(RegistrationOutcome::New)
    }

    /// Checks the registration of an engine that connects to the service: the service must listen at the given port,
    /// and no other stream may have the same topic.
    fn check_bound(&self, registration: &Registration, workers: &BTreeMap<Arc<str>, Worker>) -> Result<(), Error> {
        let Some(port) = registration.endpoint.bound_port() else { return Ok(()) };
        let ports = self.publishers.ports();
        if !ports.contains(&port) {
            let message = format!(
                "{} is for an engine that connects to port {port} of this service, which does not listen there: start it \
                 with --streams-bind 0.0.0.0:{port} (streams.bind); it listens at {ports:?}",
                registration.endpoint
            );
            return Err(Error::conflict("not_listening", message));
        }
        let has_topic = |stream: &Stream| {
            let other = &stream.registration;
            other.endpoint == registration.endpoint && other.topic == registration.topic
        };
        let taken = workers.iter().find_map(|(name, worker)| {
            worker.keyspace.streams_of(name).into_iter().find(|(_, stream)| has_topic(stream))
        });
        let Some((rank, stream)) = taken else { return Ok(()) };
        let message = format!(
            "topic {:?} at {} belongs to rank {rank} of worker {:?} already: each engine that connects needs its own topic",
            registration.topic, registration.endpoint, stream.worker
        );
        Err(Error::conflict("topic_taken", message))
    }

    /// Returns the keyspace (the index of a model and routing group) for a registration, which is created if it does
    /// not exist.
    fn keyspace_for(&self, registration: &Registration) -> Result<Arc<Keyspace>, Error> {
        let Registration { model, routing_group, block_size, .. } = registration;
        if let Some(keyspace) = self.keyspace(model, routing_group) {
            if keyspace.block_size == *block_size {
                return Ok(keyspace);
            }
            if keyspace.has_streams() {
                let message = format!(
                    "model {model:?} in routing group {routing_group:?} has blocks of {} tokens, not {block_size}: \
                     register engines with another block size in a routing group of their own (routing_group)",
                    keyspace.block_size
                );
                return Err(Error::conflict("block_size_mismatch", message));
            }
        }
        let (prompt_queue, identity) = (self.context.prompt_queue.clone(), self.context.identity.clone());
        let keyspace = Keyspace::new(model, routing_group, *block_size)?;
        let keyspace = Arc::new(keyspace.of_service(prompt_queue, identity, self.context.config.loading()));
        let mut keyspaces = Keyspaces::clone(&self.keyspaces.load());
        // Keyspaces are kept when their last worker leaves, so that queries for them are still answered.
        let count = |keyspaces: &Keyspaces| keyspaces.values().map(HashMap::len).sum::<usize>();
        let most = self.context.config.limits.keyspaces;
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
        self.context.shared.count(limit);
        let name = limit.name();
        tracing::warn!(limit = name, most, "a registration was refused because a limit is reached");
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
        for stream in &streams {
            keyspace.set_trusted(stream, &keyspace.index(), false);
        }
        let ranks: Vec<u32> = streams.iter().map(|stream| stream.registration.rank).collect();
        let mut workers = self.workers.lock();
        if keyspace.streams_of(name).len() == streams.len() {
            keyspace.change(|index| index.drop_worker(name));
            workers.remove(name);
            self.refresh_names(&workers);
        } else {
            for rank in streams.iter().flat_map(|stream| stream.ranks()) {
                keyspace.change(|index| index.clear(name, Some(rank), None));
            }
        }
        keyspace.remove(name, &ranks);
        tracing::info!(worker = name, ?ranks, "unregistered");
        Ok(ranks.len())
    }

    /// Removes the streams that an unregistration ends from the registry, and returns them with their tasks and the
    /// keyspace (index) that has their blocks. `within`: model and routing group to which the worker `name` must
    /// belong; `rank`: the only rank to remove, `None` for all.
    fn ending(&self, name: &str, within: Option<(&str, Option<&str>)>, rank: Option<u32>) -> Result<Ending, Error> {
        let mut workers = self.workers.lock();
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

    /// Ends the tasks of all streams, at the shutdown of the service. Workers and blocks are kept.
    pub(super) async fn stop(&self) {
        let tasks: Vec<_> = self
            .workers
            .lock()
            .values_mut()
            .flat_map(|worker| std::mem::take(&mut worker.tasks).into_values())
            .collect();
        for task in tasks {
            task.stop().await;
        }
    }
}

/// Compares a registration with the stream `feeder`, which already supplies the blocks of the same rank. Returns
/// [`RegistrationOutcome::Already`] if the two agree, else an error.
fn already(feeder: &Stream, registration: &Registration) -> Result<RegistrationOutcome, Error> {
    let Registration { rank, worker, .. } = registration;
    if feeder.registration.rank == *rank {
        return feeder.registration.check_same(registration).map(|()| RegistrationOutcome::Already);
    }
    let message = format!(
        "rank {rank} of worker {worker:?} already gets its events from {}, whose batches name that rank",
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
