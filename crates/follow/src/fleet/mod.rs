//! Registered fleet: workers, the tasks that follow their event streams, and the keyspaces (one index per model and
//! routing group) that they share.
//!
//! Changes are made one at a time and completely. A registration is checked against all others and made under one lock.
//! An unregistration ends when the stream's task has ended and its blocks are removed, even if the client has
//! disconnected. Queries take none of these locks. `registry` has the changes themselves, `engines` the engines that
//! discovery watches and the conditions of readiness.

mod engines;
mod names;
mod registry;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;

use self::engines::Engines;
pub use self::engines::{Blockers, EngineReport, EngineState, EngineView};
pub use self::names::ModelPlace;
use self::registry::Registry;
pub use self::registry::{RegistrationOutcome, WorkerView};
use crate::config::PoolConfig;
use crate::context::StreamContext;
use crate::error::Error;
use crate::log::panic_text;
use crate::relay::Relay;
use crate::snapshot::{Snapshots, Source};
use crate::state::{Keyspace, Registration, Stream};
use crate::stream::Publishers;
use kvatlas_stream::limits::SharedCounts;

/// Registered workers (engine instances), with their event streams and the indexes of their blocks.
pub struct Fleet {
    runtime: Handle,
    /// Lock that is held during a whole change of the fleet (a registration or unregistration), so that changes are
    /// made one after another.
    changing: tokio::sync::Mutex<()>,
    registry: Registry,
    engines: Engines,
    holds: Mutex<BTreeSet<String>>,
    draining: AtomicBool,
    /// True once the fleet has been ready with at least one registered engine.
    was_ready: AtomicBool,
}

impl Fleet {
    /// Creates an empty fleet, whose streams run on `runtime`. `holds` are the names of conditions, such as a snapshot
    /// being loaded, that keep the fleet from being ready until they are released.
    #[must_use]
    pub fn new(context: impl Into<StreamContext>, holds: &[String], runtime: Handle) -> Arc<Self> {
        Arc::new(Self {
            registry: Registry::new(context.into(), runtime.clone()),
            runtime,
            engines: Engines::default(),
            changing: tokio::sync::Mutex::default(),
            holds: Mutex::new(holds.iter().cloned().collect()),
            draining: AtomicBool::new(false),
            was_ready: AtomicBool::new(false),
        })
    }

    /// Returns the keyspace (the index with its streams) of a model and routing group; `None` if no worker was ever
    /// registered in it.
    #[must_use]
    pub fn keyspace(&self, model: &str, routing_group: &str) -> Option<Arc<Keyspace>> {
        self.registry.keyspace(model, routing_group)
    }

    /// Finds the keyspace of a model in a routing group by a name: the model's own name, an alias used by engines, or
    /// the name of a LoRA adapter.
    ///
    /// # Errors
    /// [`Error::Unknown`] for an unknown name, [`Error::Conflict`] for a name that may mean several models.
    pub fn find(&self, model: &str, routing_group: &str) -> Result<ModelPlace, Error> {
        self.registry.find(model, routing_group)
    }

    /// Returns all keyspaces (indexes with their streams), sorted by model and routing group.
    #[must_use]
    pub fn keyspaces(&self) -> Vec<Arc<Keyspace>> {
        self.registry.keyspaces()
    }

    /// Settings of all pools.
    pub(crate) fn pools(&self) -> &[PoolConfig] {
        self.registry.pools()
    }

    /// True if indexes identify blocks by hashes under a secret key that no other process has.
    #[must_use]
    pub fn is_keyed(&self) -> bool {
        self.keyspaces().iter().any(|keyspace| keyspace.identity().is_keyed())
    }

    /// Returns all registered workers, sorted by name.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerView> {
        self.registry.workers()
    }

    /// Stores a report of discovery (the automatic registration of engines) on an engine or configured stream.
    pub fn report(&self, report: EngineReport) {
        self.engines.report(report);
    }

    /// Removes the report on an engine or configured stream that discovery (the automatic registration of engines) no
    /// longer watches. Returns false if there was none.
    pub fn forget(&self, worker: &str, rank: Option<u32>) -> bool {
        self.engines.forget(worker, rank)
    }

    /// Returns the reports of discovery (the automatic registration of engines) on all engines and configured streams,
    /// whether registered or not.
    #[must_use]
    pub fn engines(&self) -> Vec<EngineView> {
        self.engines.views()
    }

    /// Returns the lag of a stream behind its engine: the delay of the last live batch or, if greater, the time for
    /// which the engine has been silent although an answer is overdue. `None` if unknown.
    #[must_use]
    pub fn lag(&self, stream: &Stream) -> Option<Duration> {
        stream.status.lag().max(self.overdue(stream))
    }

    /// Returns the time for which an engine has been silent although its answer to a replay request is overdue; `None`
    /// if no answer is overdue.
    #[must_use]
    pub fn overdue(&self, stream: &Stream) -> Option<Duration> {
        let is_asked = stream.registration.replay_endpoint.is_some();
        stream.status.silence().filter(|silence| is_asked && *silence > 2 * self.registry.probe_interval())
    }

    /// Returns the record of the engines that connect to the service instead of listening for connections.
    pub(crate) fn publishers(&self) -> &Arc<Publishers> {
        self.registry.publishers()
    }

    /// Returns the snapshots from which streams are restored, and into which they are saved.
    #[must_use]
    pub fn snapshots(&self) -> &Arc<Snapshots> {
        self.registry.snapshots()
    }

    /// Returns the connection to the NATS log to which streams are published, or from which they are read.
    pub(crate) fn relay(&self) -> &Arc<Relay> {
        self.registry.relay()
    }

    /// Returns the counts shared by all streams: bytes in buffers, and how often each limit was reached.
    #[must_use]
    pub fn shared(&self) -> &SharedCounts {
        self.registry.shared()
    }

    /// True if the service may receive queries: from the moment when all conditions of readiness are met until
    /// shutdown.
    ///
    /// An engine that is registered later does not make the service unready, because clients would then have no service
    /// to query; answers show that they lack this engine. Engines that discovery cannot register do not keep the
    /// service from being ready, unless none can be registered.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        if self.draining.load(Relaxed) {
            return false;
        }
        if self.was_ready.load(Relaxed) {
            return true;
        }
        let is_over = self.waiting().is_over();
        if is_over && self.registry.has_workers() {
            self.was_ready.store(true, Relaxed);
        }
        is_over
    }

    /// Returns the conditions of readiness that are unmet at present: streams, engines and holds. For a fleet that is
    /// already ready, these are the conditions that would keep a new one from being ready.
    #[must_use]
    pub fn waiting(&self) -> Blockers {
        let mut engines = self.engines();
        let none_usable = !engines.is_empty() && !self.registry.has_workers();
        engines.retain(|engine| engine.state != EngineState::Registered);
        Blockers {
            engines,
            none_usable,
            holds: self.holds.lock().iter().cloned().collect(),
            streams: engines::unsettled(self.workers()),
            draining: self.draining.load(Relaxed),
        }
    }

    /// Releases a hold, a named condition that keeps the service from being ready. Returns false if there was no hold
    /// of this name.
    pub fn release(&self, hold: &str) -> bool {
        self.holds.lock().remove(hold)
    }

    /// Marks the service as shutting down, so that it is no longer ready.
    pub fn drain(&self) {
        self.draining.store(true, Relaxed);
    }

    /// Registers an engine's stream and starts to follow it. Making the same registration again has no effect.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a block size of 0 and empty names; [`Error::Conflict`] if the rank is registered with
    /// another endpoint or fed by another stream, the worker belongs to another keyspace, or the keyspace has another
    /// block size.
    pub async fn register(self: &Arc<Self>, registration: Registration) -> Result<RegistrationOutcome, Error> {
        let fleet = self.clone();
        self.whole(async move {
            // Before there is another one to wait for.
            let _ = fleet.is_ready();
            fleet.registry.register(registration)
        })
        .await
    }

    /// Stops following a worker, or one of its ranks, and removes its blocks from the index. Returns the number of
    /// streams ended.
    ///
    /// # Errors
    /// [`Error::Unknown`] if the worker is not registered, is not in the given keyspace, or has no such rank.
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
            fleet.registry.unregister(&worker, keyspace, rank).await
        })
        .await
    }

    /// Makes the next registration panic, for tests.
    #[cfg(test)]
    pub(crate) fn fail_next_registration(&self) {
        self.registry.fail.store(true, Relaxed);
    }

    /// Ends all streams. Their blocks stay in the indexes for queries that are still running.
    pub async fn stop(self: &Arc<Self>) {
        self.drain();
        let _whole = self.changing.lock().await;
        self.registry.stop().await;
    }

    /// Runs a change of the fleet (a registration or unregistration) to its end, even if the caller's future is
    /// dropped. Changes run one at a time.
    async fn whole<T: Send + 'static>(
        self: &Arc<Self>,
        change: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let fleet = self.clone();
        let task = self.runtime.spawn(async move {
            let _whole = fleet.changing.lock().await;
            change.await
        });
        task.await.map_err(|error| match error.try_into_panic() {
            Ok(panic) => {
                tracing::error!(panic = panic_text(&*panic), "internal error while the fleet was being changed");
                Error::Internal
            }
            // Its threads have ended.
            Err(_) => Error::Closed,
        })?
    }
}

impl Source for Fleet {
    fn keyspaces(&self) -> Vec<Arc<Keyspace>> {
        self.keyspaces()
    }

    fn release(&self, hold: &str) -> bool {
        self.release(hold)
    }
}
