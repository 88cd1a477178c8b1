//! The registered fleet: workers, the tasks that follow their streams, and the keyspaces that they share.
//!
//! Changes are made one at a time and whole: a registration is checked against all others and made under one lock, and an
//! unregistration ends when the stream's task has ended and its blocks are gone, even if the client has left.
//! Queries take none of these locks. `registry` has the changes themselves, `engines` the engines that discovery follows and
//! the conditions of readiness.

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

/// Registered workers, with their streams and keyspaces.
pub struct Fleet {
    runtime: Handle,
    /// Lock held during a whole change, so that changes happen one after another.
    changing: tokio::sync::Mutex<()>,
    registry: Registry,
    engines: Engines,
    holds: Mutex<BTreeSet<String>>,
    draining: AtomicBool,
    /// True once the fleet has been ready with at least one engine.
    was_ready: AtomicBool,
}

impl Fleet {
    /// Creates an empty fleet, whose streams run on `runtime`. `holds`: names of conditions that hold readiness back,
    /// besides the streams.
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

    /// Keyspace of a model and routing group; `None` if no worker of theirs was ever registered.
    #[must_use]
    pub fn keyspace(&self, model: &str, routing_group: &str) -> Option<Arc<Keyspace>> {
        self.registry.keyspace(model, routing_group)
    }

    /// Keyspace of a model, found by the model's name, an alias of engines, or the name of an adapter.
    ///
    /// # Errors
    /// [`Error::Unknown`] for an unknown name, [`Error::Conflict`] for a name that may mean several models.
    pub fn find(&self, model: &str, routing_group: &str) -> Result<ModelPlace, Error> {
        self.registry.find(model, routing_group)
    }

    /// All keyspaces, by model and routing group.
    #[must_use]
    pub fn keyspaces(&self) -> Vec<Arc<Keyspace>> {
        self.registry.keyspaces()
    }

    /// Settings of all pools.
    pub(crate) fn pools(&self) -> &[PoolConfig] {
        self.registry.pools()
    }

    /// True if indexes identify blocks by words under a key that no other process has.
    #[must_use]
    pub fn is_keyed(&self) -> bool {
        self.keyspaces().iter().any(|keyspace| keyspace.identity().is_keyed())
    }

    /// All workers, by name.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerView> {
        self.registry.workers()
    }

    /// Stores discovery's report on an engine or a configured stream.
    pub fn report(&self, report: EngineReport) {
        self.engines.report(report);
    }

    /// Forgets an engine or a configured stream that discovery followed. False if it was unknown.
    pub fn forget(&self, worker: &str, rank: Option<u32>) -> bool {
        self.engines.forget(worker, rank)
    }

    /// Engines and streams that discovery follows, registered or not.
    #[must_use]
    pub fn engines(&self) -> Vec<EngineView> {
        self.engines.views()
    }

    /// Lag of a stream behind its engine: the delay of the last live batch, or, if larger, the silence of an engine
    /// whose answer is overdue; `None` if unknown.
    #[must_use]
    pub fn lag(&self, stream: &Stream) -> Option<Duration> {
        stream.status.lag().max(self.overdue(stream))
    }

    /// Silence of a stream whose engine's answer to a probe is overdue; `None` if no answer is overdue.
    #[must_use]
    pub fn overdue(&self, stream: &Stream) -> Option<Duration> {
        let is_asked = stream.registration.replay_endpoint.is_some();
        stream.status.silence().filter(|silence| is_asked && *silence > 2 * self.registry.probe_interval())
    }

    /// Engines that connect to this service.
    pub(crate) fn publishers(&self) -> &Arc<Publishers> {
        self.registry.publishers()
    }

    /// Snapshots that streams are restored from, and written to.
    #[must_use]
    pub fn snapshots(&self) -> &Arc<Snapshots> {
        self.registry.snapshots()
    }

    /// Log that streams are published to, or read from.
    pub(crate) fn relay(&self) -> &Arc<Relay> {
        self.registry.relay()
    }

    /// Counts shared by all streams: bytes in buffers, and how often each limit was reached.
    #[must_use]
    pub fn shared(&self) -> &SharedCounts {
        self.registry.shared()
    }

    /// True if the service may receive queries: from when readiness waits for nothing until shutdown. An engine that is
    /// registered later does not make the service unready, as clients would have no service left to ask; answers show
    /// that they lack this engine. Engines that discovery cannot register do not hold readiness back, unless none can
    /// be registered.
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

    /// Streams, engines and holds that readiness waits for, or would wait for if the fleet were not ready already.
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

    /// Releases a hold on readiness. False if there was no hold of this name.
    pub fn release(&self, hold: &str) -> bool {
        self.holds.lock().remove(hold)
    }

    /// Marks the service as shutting down: it is not ready from now on.
    pub fn drain(&self) {
        self.draining.store(true, Relaxed);
    }

    /// Starts to follow an engine. The same registration may be made twice.
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

    /// Stops following a worker, or one rank of the worker, and drops the blocks. Returns the number of streams ended.
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
            fleet.registry.unregister(&worker, keyspace, rank).await
        })
        .await
    }

    /// Makes the next registration panic, for tests.
    #[cfg(test)]
    pub(crate) fn fail_next_registration(&self) {
        self.registry.fail.store(true, Relaxed);
    }

    /// Ends all streams. Blocks stay in the indexes, for queries that are still running.
    pub async fn stop(self: &Arc<Self>) {
        self.drain();
        let _whole = self.changing.lock().await;
        self.registry.stop().await;
    }

    /// Runs a change to its end, one change at a time, even if the caller's future is dropped.
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
