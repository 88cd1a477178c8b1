//! Who is registered: workers, their streams, the keyspaces that they share.
//!
//! Changes go one at a time and whole: a registration is checked against all others and made under one lock, and an
//! unregistration ends when the stream's task has ended and its holdings are gone, even if whoever asked has left.
//! Queries take none of these locks.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use tokio::runtime::Handle;

use crate::error::Error;
use crate::keyspace::{Keyspace, UntrustedStreams};
pub use crate::registration::Registration;
use crate::settings::StreamSettings;
use crate::status::StreamStatus;
use crate::stream::{self, StreamHandle};

/// So many keyspaces are kept although their last worker has left, so that queries for them are still answered.
const KEPT_KEYSPACES: usize = 1024;

/// So many ranks one stream may feed: more than any engine has behind one socket.
const MOST_RANKS: usize = 1024;

/// One engine rank's events.
pub struct Stream {
    /// The worker's name.
    pub worker: Arc<str>,
    /// As registered.
    pub registration: Registration,
    /// Where its blocks go.
    pub keyspace: Arc<Keyspace>,
    /// What is known about it.
    pub status: StreamStatus,
    /// Ranks that it feeds.
    ranks: Mutex<BTreeSet<u32>>,
}

impl Stream {
    /// The ranks that it feeds: the registered one, and those that its batches name.
    #[must_use]
    pub fn ranks(&self) -> BTreeSet<u32> {
        lock(&self.ranks).clone()
    }
}

/// A registered worker.
struct Worker {
    name: Arc<str>,
    keyspace: Arc<Keyspace>,
    /// By registered rank.
    streams: BTreeMap<u32, Registered>,
}

impl Worker {
    /// What feeds a rank: no two streams of a worker feed the same one.
    fn feeder(&self, rank: u32) -> Option<&Registered> {
        let feeds = || self.streams.values().find(|r| lock(&r.stream.ranks).contains(&rank));
        self.streams.get(&rank).or_else(feeds)
    }
}

struct Registered {
    stream: Arc<Stream>,
    handle: Option<StreamHandle>,
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

/// Whether a registration changed anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registering {
    /// It did.
    New,
    /// The same was registered already.
    Already,
}

/// What readiness waits for; nothing if ready.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Names that nobody has released.
    pub holds: Vec<String>,
    /// Streams whose first replay is neither through nor given up: worker, rank, state.
    pub streams: Vec<(Arc<str>, u32, &'static str)>,
    /// Whether the service is going down.
    pub draining: bool,
}

impl Waiting {
    /// Whether there is nothing to wait for.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.holds.is_empty() && self.streams.is_empty() && !self.draining
    }
}

type Keyspaces = HashMap<Box<str>, HashMap<Box<str>, Arc<Keyspace>>>;

/// All that is registered.
pub struct Fleet {
    settings: StreamSettings,
    runtime: Handle,
    /// Held over a whole change.
    changing: tokio::sync::Mutex<()>,
    workers: Mutex<BTreeMap<Arc<str>, Worker>>,
    keyspaces: ArcSwap<Keyspaces>,
    holds: Mutex<BTreeSet<String>>,
    draining: AtomicBool,
}

impl Fleet {
    /// An empty fleet, whose streams run on `runtime`.
    #[must_use]
    pub fn new(settings: StreamSettings, holds: &[String], runtime: Handle) -> Arc<Self> {
        Arc::new(Self {
            settings,
            runtime,
            changing: tokio::sync::Mutex::default(),
            workers: Mutex::default(),
            keyspaces: ArcSwap::default(),
            holds: Mutex::new(holds.iter().cloned().collect()),
            draining: AtomicBool::new(false),
        })
    }

    /// How streams are followed.
    #[must_use]
    pub fn settings(&self) -> &StreamSettings {
        &self.settings
    }

    /// The keyspace of a model and routing group, if anybody ever registered one.
    #[must_use]
    pub fn keyspace(&self, model: &str, group: &str) -> Option<Arc<Keyspace>> {
        self.keyspaces.load().get(model)?.get(group).cloned()
    }

    /// All keyspaces, by model and group.
    #[must_use]
    pub fn keyspaces(&self) -> Vec<Arc<Keyspace>> {
        let mut all: Vec<_> = self.keyspaces.load().values().flat_map(|groups| groups.values().cloned()).collect();
        all.sort_by(|a, b| (&a.model, &a.group).cmp(&(&b.model, &b.group)));
        all
    }

    /// All workers, by name.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerView> {
        let view = |worker: &Worker| WorkerView {
            name: worker.name.clone(),
            keyspace: worker.keyspace.clone(),
            streams: worker.streams.iter().map(|(rank, r)| (*rank, r.stream.clone())).collect(),
        };
        lock(&self.workers).values().map(view).collect()
    }

    /// The stream that feeds a worker's rank.
    #[must_use]
    pub fn stream(&self, worker: &str, rank: u32) -> Option<Arc<Stream>> {
        let workers = lock(&self.workers);
        workers.get(worker)?.feeder(rank).map(|r| r.stream.clone())
    }

    /// What readiness waits for.
    #[must_use]
    pub fn waiting(&self) -> Waiting {
        let streams = self.workers().into_iter().flat_map(|worker| {
            let unsettled = worker.streams.into_iter().filter(|(_, stream)| !stream.status.is_settled());
            unsettled
                .map(|(rank, stream)| (stream.worker.clone(), rank, stream.status.state().name()))
                .collect::<Vec<_>>()
        });
        Waiting {
            holds: lock(&self.holds).iter().cloned().collect(),
            streams: streams.collect(),
            draining: self.draining.load(Relaxed),
        }
    }

    /// Readiness does not wait for this any more. False if it did not.
    pub fn release(&self, hold: &str) -> bool {
        lock(&self.holds).remove(hold)
    }

    /// Says from now on that the service is not ready.
    pub fn drain(&self) {
        self.draining.store(true, Relaxed);
    }

    /// Starts to follow an engine. Saying the same twice is fine.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a block size of 0 and empty names; [`Error::Conflict`] if the rank is registered with
    /// another endpoint or fed by another stream, the worker belongs to another keyspace, or the keyspace has another
    /// block size.
    pub async fn register(self: &Arc<Self>, registration: Registration) -> Result<Registering, Error> {
        let fleet = self.clone();
        self.whole(async move { fleet.register_now(registration) }).await
    }

    /// Stops to follow a worker, or one rank of it, and forgets what it held. Returns the number of streams ended.
    ///
    /// # Errors
    /// [`Error::Unknown`] if the worker is not registered, not in that keyspace, or has no such rank.
    pub async fn unregister(
        self: &Arc<Self>,
        worker: &str,
        keyspace: Option<(&str, Option<&str>)>,
        rank: Option<u32>,
    ) -> Result<usize, Error> {
        let fleet = self.clone();
        let worker = worker.to_owned();
        let keyspace = keyspace.map(|(model, group)| (model.to_owned(), group.map(str::to_owned)));
        self.whole(async move {
            let keyspace = keyspace.as_ref().map(|(model, group)| (model.as_str(), group.as_deref()));
            fleet.unregister_now(&worker, keyspace, rank).await
        })
        .await
    }

    /// Ends all streams. Holdings stay, so that queries still running have their answers.
    pub async fn stop(self: &Arc<Self>) {
        self.drain();
        let _whole = self.changing.lock().await;
        let handles: Vec<_> = lock(&self.workers)
            .values_mut()
            .flat_map(|worker| worker.streams.values_mut().filter_map(|r| r.handle.take()))
            .collect();
        for handle in handles {
            handle.stop().await;
        }
    }

    /// Runs a change to its end, one at a time, whatever becomes of the caller.
    async fn whole<T: Send + 'static>(
        self: &Arc<Self>,
        change: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let fleet = self.clone();
        let task = self.runtime.spawn(async move {
            let _whole = fleet.changing.lock().await;
            change.await
        });
        task.await.map_err(|_| Error::Closed)?
    }

    fn register_now(self: &Arc<Self>, registration: Registration) -> Result<Registering, Error> {
        registration.check()?;
        let mut workers = lock(&self.workers);
        if let Some(worker) = workers.get(registration.worker.as_str()) {
            same_keyspace(worker, &registration)?;
            if let Some(other) = worker.streams.get(&registration.rank) {
                return other.stream.registration.check_same(&registration).map(|()| Registering::Already);
            }
            if let Some(other) = worker.feeder(registration.rank) {
                let message = format!(
                    "rank {} of worker {:?} is fed already by {}, whose batches name that rank",
                    registration.rank, registration.worker, other.stream.registration.endpoint
                );
                return Err(Error::conflict("rank_taken", message));
            }
        }
        let keyspace = self.keyspace_for(&workers, &registration)?;
        let name: Arc<str> = workers
            .get(registration.worker.as_str())
            .map_or_else(|| registration.worker.as_str().into(), |worker| worker.name.clone());
        let rank = registration.rank;
        let stream = Arc::new(Stream {
            worker: name.clone(),
            registration,
            keyspace: keyspace.clone(),
            status: StreamStatus::default(),
            ranks: Mutex::new(BTreeSet::from([rank])),
        });
        let handle = stream::spawn(&self.runtime, self.clone(), stream.clone());
        let worker = workers.entry(name.clone()).or_insert_with(|| Worker {
            name,
            keyspace: keyspace.clone(),
            streams: BTreeMap::new(),
        });
        let Registration { worker: name, model, group, endpoint, source, .. } = &stream.registration;
        tracing::info!(worker = name, rank, model, group, %endpoint, source, "registered");
        worker.streams.insert(rank, Registered { stream, handle: Some(handle) });
        refresh(&workers, &keyspace);
        Ok(Registering::New)
    }

    /// The keyspace of a registration, made if it is not there.
    fn keyspace_for(
        &self,
        workers: &BTreeMap<Arc<str>, Worker>,
        registration: &Registration,
    ) -> Result<Arc<Keyspace>, Error> {
        let Registration { model, group, block_size, .. } = registration;
        if let Some(keyspace) = self.keyspace(model, group) {
            if keyspace.block_size == *block_size {
                return Ok(keyspace);
            }
            if workers.values().any(|worker| Arc::ptr_eq(&worker.keyspace, &keyspace)) {
                let message = format!(
                    "model {model:?} in routing group {group:?} has blocks of {} tokens, not {block_size}",
                    keyspace.block_size
                );
                return Err(Error::conflict("block_size_mismatch", message));
            }
        }
        let keyspace = Arc::new(Keyspace::new(model, group, *block_size)?);
        let mut keyspaces = Keyspaces::clone(&self.keyspaces.load());
        if keyspaces.values().map(HashMap::len).sum::<usize>() >= KEPT_KEYSPACES {
            keyspaces.retain(|_, groups| {
                groups.retain(|_, keyspace| workers.values().any(|worker| Arc::ptr_eq(&worker.keyspace, keyspace)));
                !groups.is_empty()
            });
        }
        keyspaces.entry(model.as_str().into()).or_default().insert(group.as_str().into(), keyspace.clone());
        self.keyspaces.store(Arc::new(keyspaces));
        Ok(keyspace)
    }

    async fn unregister_now(
        &self,
        name: &str,
        keyspace: Option<(&str, Option<&str>)>,
        rank: Option<u32>,
    ) -> Result<usize, Error> {
        let mut ending = Vec::new();
        {
            let mut workers = lock(&self.workers);
            let found = workers.get_mut(name).filter(|worker| {
                keyspace.is_none_or(|(model, group)| {
                    *worker.keyspace.model == *model && group.is_none_or(|group| *worker.keyspace.group == *group)
                })
            });
            let Some(worker) = found else {
                let within = keyspace.map_or_else(String::new, |(model, group)| {
                    format!(" for model {model:?} in routing group {:?}", group.unwrap_or("(any)"))
                });
                return Err(Error::unknown("unknown_worker", format!("worker {name:?} is not registered{within}")));
            };
            let ranks: Vec<u32> = match rank {
                None => worker.streams.keys().copied().collect(),
                Some(rank) => {
                    let Some(feeder) = worker.feeder(rank) else {
                        let message = format!("worker {name:?} has no rank {rank}");
                        return Err(Error::unknown("unknown_rank", message));
                    };
                    vec![feeder.stream.registration.rank]
                }
            };
            for rank in ranks {
                if let Some(registered) = worker.streams.get_mut(&rank) {
                    ending.push((rank, registered.stream.clone(), registered.handle.take()));
                }
            }
        }
        // The stream stays listed until nothing of it can be applied any more; then it goes with what it held.
        for (_, _, handle) in &mut ending {
            if let Some(handle) = handle.take() {
                handle.stop().await;
            }
        }
        let mut workers = lock(&self.workers);
        let Some(worker) = workers.get_mut(name) else { return Ok(0) };
        let keyspace = worker.keyspace.clone();
        for (rank, ..) in &ending {
            worker.streams.remove(rank);
        }
        if worker.streams.is_empty() {
            keyspace.index.drop_worker(name);
            workers.remove(name);
        } else {
            for rank in ending.iter().flat_map(|(_, stream, _)| stream.ranks()) {
                keyspace.index.clear(name, Some(rank), None);
            }
        }
        refresh(&workers, &keyspace);
        let ranks: Vec<u32> = ending.iter().map(|(rank, ..)| *rank).collect();
        tracing::info!(worker = name, ?ranks, "unregistered");
        Ok(ending.len())
    }

    /// The rank to store a batch under that names `announced`: that one, unless another stream feeds it already or this
    /// one feeds too many; then the registered one.
    pub(crate) fn claim(&self, stream: &Arc<Stream>, announced: u32) -> u32 {
        let workers = lock(&self.workers);
        if lock(&stream.ranks).contains(&announced) {
            return announced;
        }
        let taken = workers.get(&stream.worker).is_some_and(|worker| worker.feeder(announced).is_some());
        if taken || lock(&stream.ranks).len() >= MOST_RANKS {
            return stream.registration.rank;
        }
        lock(&stream.ranks).insert(announced);
        refresh(&workers, &stream.keyspace);
        announced
    }

    /// To be called when a stream came to be trusted, or not to be, or its depths came to be upper bounds.
    pub(crate) fn trust_changed(&self, stream: &Stream) {
        refresh(&lock(&self.workers), &stream.keyspace);
    }
}

/// Makes a keyspace's list of untrusted streams anew.
fn refresh(workers: &BTreeMap<Arc<str>, Worker>, keyspace: &Arc<Keyspace>) {
    let here = workers.values().filter(|worker| Arc::ptr_eq(&worker.keyspace, keyspace));
    let streams: Vec<_> = here.flat_map(|worker| worker.streams.values().map(|r| &r.stream)).collect();
    let untrusted = streams.iter().filter(|stream| !stream.status.is_trusted()).copied().cloned().collect();
    let upper_bounds = streams.into_iter().filter(|stream| stream.status.upper_bound.load(Relaxed));
    keyspace.set_untrusted(UntrustedStreams::new(untrusted, upper_bounds));
}

fn same_keyspace(worker: &Worker, registration: &Registration) -> Result<(), Error> {
    let Keyspace { model, group, block_size, .. } = &*worker.keyspace;
    if **model == *registration.model && **group == *registration.group && *block_size == registration.block_size {
        return Ok(());
    }
    let code = if *block_size == registration.block_size { "other_keyspace" } else { "block_size_mismatch" };
    let message = format!(
        "worker {:?} is registered for model {model:?} in routing group {group:?} with blocks of {block_size} tokens",
        registration.worker
    );
    Err(Error::conflict(code, message))
}

/// The lock, also after a thread panicked while it held it: nothing here is left half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
