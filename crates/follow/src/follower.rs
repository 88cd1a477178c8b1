//! Follower of engines' event streams ([`Follower`]), which keeps indexes of their blocks and has no HTTP server.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use crate::adopt;
use crate::allow::AllowList;
use crate::config::Config;
use crate::context::StreamContext;
use crate::error::Error;
use crate::fleet::{EngineReport, Fleet, RegistrationOutcome};
use crate::log;
use crate::metrics;
use crate::pool_files;
use crate::pool_listings;
use crate::pool_store::PoolStore;
use crate::register;
use crate::relay::Relay;
use crate::relay_reader;
use crate::report;
use crate::sites::{Digests, KeyspaceDigest, SoleTokens, Tops};
use crate::snapshot::{self, Directory, Keeper, Origin, PackedSnapshot, Snapshots, Source, read_file};
use crate::sources::Sources;
use crate::state::{Keyspace, PromptQueue};
use kvatlas_stream::zmtp::Room;

/// Maximum wait for threads to end when a follower is dropped.
const END: Duration = Duration::from_secs(2);

/// Maximum wait of a client for a snapshot that is being made, after which the client must request it again.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Maximum time for copying the held blocks of all streams into the last snapshot, at shutdown.
const LAST_SNAPSHOT: Duration = Duration::from_secs(10);

/// Follower of engines' event streams, which keeps indexes of their blocks. It listens only at the addresses in
/// `streams.bind`. A router runs a follower in its own process; the index service is a follower with an HTTP server.
///
/// Methods block, so they must not be called from inside an async runtime.
pub struct Follower {
    fleet: Arc<Fleet>,
    /// Rules for the endpoints that may be registered.
    allow: Arc<AllowList>,
    /// Queue of prompts whose tokens may reveal the contents of blocks that engines announced before this service
    /// followed them.
    prompt_queue: Arc<PromptQueue<Keyspace>>,
    running: Mutex<Option<FollowerThreads>>,
    digests: Digests,
    sole_tokens: SoleTokens,
    sites: Arc<Tops>,
    sources: Arc<Sources>,
    /// Stores that are followed as pools.
    stores: Vec<Arc<PoolStore>>,
    context: StreamContext,
}

struct FollowerThreads {
    ingest: Runtime,
    adopt: AdoptionThread,
    keeper: Option<Keeper>,
}

/// Handle of the thread that adds blocks announced before the service started to the index. Ends the thread when
/// dropped.
struct AdoptionThread {
    prompt_queue: Arc<PromptQueue<Keyspace>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for AdoptionThread {
    fn drop(&mut self) {
        self.prompt_queue.close();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that learns blocks announced earlier has failed");
        }
    }
}

impl Follower {
    /// Starts a follower. Engines can be registered as soon as the call returns. `asks_for_key` is true if registration
    /// over HTTP requires a key.
    ///
    /// # Errors
    /// [`Error::Start`] if listening at an address in `streams.bind` fails, or a thread cannot be started.
    pub fn start(config: Config, asks_for_key: bool) -> Result<Self, Error> {
        log::start(config.log);
        let ingest = Builder::new_multi_thread()
            .worker_threads(config.streams.threads)
            .thread_name("kvatlas-ingest")
            .enable_all()
            .build()
            .map_err(|error| Error::Start {
                message: format!("cannot start the threads that follow streams: {error}"),
            })?;
        let (identity, schemes) = (config.identity()?, config.schemes());
        let directory = config.snapshot.dir.as_deref().map(Directory::open).transpose()?;
        let snapshots = Arc::new(Snapshots::new(config.snapshot));
        let relay = Arc::new(Relay::new(config.relay));
        let context = StreamContext {
            identity: Arc::new(identity),
            schemes,
            snapshots: snapshots.clone(),
            relay: relay.clone(),
            ..config.streams.into()
        };
        ingest.block_on(relay.start())?;
        let mut holds = config.holds;
        holds.extend(relay_reader::hold(&relay));
        if snapshots.is_loading() {
            holds.push(snapshot::HOLD.to_owned());
            ingest.spawn(snapshots.clone().expire());
        }
        let fleet = Fleet::new(context.clone(), &holds, ingest.handle().clone());
        relay_reader::start(&fleet, &context, ingest.handle());
        for pool in context.config.pools.iter().filter(|pool| pool.directory.is_some()) {
            ingest.spawn(pool_files::watch(fleet.clone(), pool.clone()));
        }
        let pools = context.config.pools.iter().filter(|pool| pool.mooncake.is_some());
        let stores = pools.map(|pool| Arc::new(PoolStore::new(pool.clone(), fleet.clone()))).collect();
        let adopt = adopt::start(&fleet, config.adopt.share, &context)?;
        let prompt_queue = context.prompt_queue.clone();
        let adopt = AdoptionThread { prompt_queue: prompt_queue.clone(), thread: adopt };
        let allow = Arc::new(AllowList::new(&context.config.allow, !asks_for_key)?);
        for at in &context.config.bind {
            listen_for_engines(*at, context.room(), &fleet, &allow, &ingest)?;
        }
        let keeper = directory.map(|directory| Keeper::start(snapshots, fleet.clone(), directory)).transpose()?;
        let running = Mutex::new(Some(FollowerThreads { ingest, adopt, keeper }));
        let digests = Digests::new(config.sites.grain);
        let sites = Arc::new(Tops::new(config.sites));
        let sole_tokens = SoleTokens::default();
        let sources = Arc::default();
        Ok(Self { fleet, allow, prompt_queue, running, digests, sole_tokens, sites, sources, stores, context })
    }

    /// Returns the fleet of registered engines.
    #[must_use]
    pub fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// Returns the rules for the endpoints that may be registered.
    #[must_use]
    pub fn allow(&self) -> &AllowList {
        &self.allow
    }

    /// Returns the sites whose digests (summaries of their indexes) were received; empty in a service that receives
    /// none.
    #[must_use]
    pub fn sites(&self) -> &Tops {
        &self.sites
    }

    /// Returns the sources in which engines are found automatically, such as the pods of a cluster, with their states.
    #[must_use]
    pub fn sources(&self) -> &Arc<Sources> {
        &self.sources
    }

    /// Registers an engine's stream, given as a JSON body of `/register`, which may additionally have the member
    /// `source`. Returns true if the registration is new.
    ///
    /// `announced_by` is the host of the engine that announced the endpoints; each endpoint must then be on that host
    /// or be allowed by the configuration. `None` means that the operator gave the endpoints, which is always allowed.
    ///
    /// # Errors
    /// The errors of the HTTP route `/register`.
    pub fn register(&self, json: &str, announced_by: Option<&str>) -> Result<bool, Error> {
        let registration = register::registration(json.as_bytes())?;
        if announced_by.is_some() {
            self.allow.check_registration(&registration, announced_by)?;
        }
        let fleet = self.fleet.clone();
        let registering = self.wait(async move { fleet.register(registration).await })??;
        Ok(registering == RegistrationOutcome::New)
    }

    /// Checks that an endpoint may be followed if the engine at host `announced_by` has announced it.
    ///
    /// # Errors
    /// [`Error::Forbidden`] if the endpoint may not be followed, [`Error::Invalid`] if the text is not an endpoint.
    pub fn check_allowed(&self, endpoint: &str, announced_by: &str) -> Result<(), Error> {
        self.allow.check(&endpoint.parse()?, Some(announced_by))
    }

    /// Unregisters a worker, or one of its ranks. Returns the number of streams ended.
    ///
    /// # Errors
    /// [`Error::Unknown`] if the worker or rank is not registered.
    pub fn unregister(&self, worker: &str, rank: Option<u32>) -> Result<usize, Error> {
        let fleet = self.fleet.clone();
        let worker = worker.to_owned();
        self.wait(async move { fleet.unregister(&worker, None, rank).await })?
    }

    /// Appends the metrics of engines, streams and indexes in Prometheus's text format, without the final `# EOF` line.
    ///
    /// # Errors
    /// If writing to `out` fails.
    pub fn write_metrics(&self, out: &mut String) -> std::fmt::Result {
        metrics::write(&self.fleet, &self.stores, &self.prompt_queue, &self.sites, out)?;
        self.sources.write_metrics(out)
    }

    /// Notes that the keys of a pool's store are being asked for. False if no such pool follows a store.
    pub fn begin_pool_look(&self, pool: &str) -> bool {
        let store = self.store_of(pool);
        store.inspect(|store| store.begin_look()).is_some()
    }

    /// Applies the keys of a pool's store, one in a line; `None` if they could not be got. `publishes`: true if the store
    /// says that it publishes events, which are followed from then on if the pool has an endpoint of events. Returns a
    /// report in JSON; `None` without keys.
    pub fn end_pool_look(&self, pool: &str, keys: Option<&[u8]>, publishes: bool) -> Option<String> {
        let store = self.store_of(pool)?;
        if publishes && let Some(running) = &*self.running.lock() {
            store.follow(&self.context, running.ingest.handle());
        }
        serde_json::to_string(&store.end_look(keys, publishes)?).ok()
    }

    /// True if the keys of a pool's store are to be asked for at once, as events of the store were missed.
    #[must_use]
    pub fn wants_pool_look(&self, pool: &str) -> bool {
        self.store_of(pool).is_some_and(|store| store.wants_look())
    }

    fn store_of(&self, pool: &str) -> Option<&Arc<PoolStore>> {
        self.stores.iter().find(|store| store.name() == pool)
    }

    /// Returns the answer to `/workers` as JSON.
    #[must_use]
    pub fn workers(&self) -> Value {
        report::workers(&self.fleet, None, None)
    }

    /// Stores a report on the automatic registration of an engine, given as an [`EngineReport`] in JSON.
    ///
    /// # Errors
    /// [`Error::Config`] if the text is not a report on an engine.
    pub fn report_engine(&self, report: &str) -> Result<(), Error> {
        let report: EngineReport = serde_json::from_str(report).map_err(|error| Error::config(error.to_string()))?;
        self.fleet.report(report);
        Ok(())
    }

    /// Removes the report on the automatic registration of an engine or configured stream. Returns false if there was
    /// none.
    pub fn forget_engine(&self, worker: &str, rank: Option<u32>) -> bool {
        self.fleet.forget(worker, rank)
    }

    /// Returns the block size, in tokens, of most blocks in a worker's events, if it differs from the registered block
    /// size; else `None`.
    #[must_use]
    pub fn other_block_size(&self, worker: &str) -> Option<u32> {
        let keyspaces = self.fleet.keyspaces();
        let streams = keyspaces.iter().flat_map(|keyspace| keyspace.streams_of(worker));
        let sizes = streams.filter(|(_, stream)| stream.status.has_other_size());
        sizes.filter_map(|(_, stream)| stream.status.other_size()).max_by_key(|its| its.1).map(|(size, _)| size)
    }

    /// Returns the workers whose engines have been found to have restarted since the last call.
    #[must_use]
    pub fn restarted(&self) -> Vec<Arc<str>> {
        let keyspaces = self.fleet.keyspaces();
        let streams = keyspaces.iter().flat_map(|keyspace| keyspace.streams());
        let mut workers: Vec<_> =
            streams.filter(|stream| stream.status.has_new_epoch()).map(|stream| stream.worker.clone()).collect();
        workers.sort_unstable();
        workers.dedup();
        workers
    }

    /// Loads a snapshot of another service from a file, if streams wait for one (the setting `snapshot.from_peer`).
    /// `url` is the URL from which the file was downloaded. Returns the number of streams in the snapshot.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if the snapshot cannot be used; the streams then begin without it.
    pub fn load_snapshot(&self, file: &Path, url: &str) -> Result<u64, Error> {
        let snapshots = self.fleet.snapshots();
        let read = read_file(file, snapshots.config.max_bytes).map_err(|error| format!("{}: {error}", file.display()));
        let read = read.map_err(|message| Error::Snapshot { message });
        let loaded = read.and_then(|bytes| snapshots.read(&bytes, Origin { kind: "peer", file: url.to_owned() }));
        self.no_snapshot(loaded.as_ref().err().map(ToString::to_string).as_deref());
        loaded
    }

    /// Ends the wait of streams for a snapshot of another service. `why` is the error that prevented the snapshot;
    /// `None` if the other service has none.
    pub fn no_snapshot(&self, why: Option<&str>) {
        let snapshots = self.fleet.snapshots();
        if let Some(why) = why {
            snapshots.counts.refused.fetch_add(1, Relaxed);
            tracing::error!(why, "the snapshot of another service cannot be used; the streams begin without it");
        }
        snapshots.loaded(&*self.fleet);
    }

    /// Begins a listing of the chunks of a pool that LMCache fills, before its first page is asked for.
    ///
    /// # Errors
    /// [`Error::Unknown`] if LMCache fills no pool of this name.
    pub fn begin_listing(&self, pool: &str) -> Result<(), Error> {
        pool_listings::begin(&self.fleet, pool)
    }

    /// Takes in a page of a listing: the coordinator's answer for up to `limit` keys from `offset` on. Returns the position
    /// of the next page; `None` if this was the last one, and the listing counts from now on.
    ///
    /// # Errors
    /// [`Error::Unknown`] if there is no such pool or listing, [`Error::Invalid`] if the page cannot be used.
    pub fn add_listing_page(&self, pool: &str, offset: u64, limit: u64, page: &[u8]) -> Result<Option<u64>, Error> {
        pool_listings::add_page(&self.fleet, pool, (offset, limit), page)
    }

    /// Ends a listing that cannot be completed. `why`: the error that prevented it.
    ///
    /// # Errors
    /// [`Error::Unknown`] if LMCache fills no pool of this name.
    pub fn fail_listing(&self, pool: &str, why: &str) -> Result<(), Error> {
        pool_listings::fail(&self.fleet, pool, why)
    }

    /// Returns digests of each keyspace for the service above the sites: the changes since the last call, or complete
    /// digests for the keyspaces in `whole`, given by model and routing group. `site` is the name of this site.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the site's name cannot be used.
    pub fn site_digests(&self, site: &str, whole: &[(String, String)]) -> Result<Vec<KeyspaceDigest>, Error> {
        let is_whole = |model: &str, group: &str| whole.iter().any(|(a, b)| a == model && b == group);
        let keyspaces = self.fleet.keyspaces();
        let next = |it: &Arc<Keyspace>| self.digests.next(site, it, is_whole(&it.model, &it.routing_group));
        keyspaces.iter().map(next).collect()
    }

    /// Counts, for each worker, the tokens whose blocks no other worker holds, and which would be lost with the worker.
    /// The numbers are approximate. Workers whose streams are not trusted are left out. Only changes since the last
    /// call are read from the index, in slices.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the tokens cannot be counted.
    pub fn sole_tokens(&self) -> Result<BTreeMap<String, u64>, Error> {
        self.sole_tokens.count(&self.fleet.keyspaces())
    }

    /// Returns a snapshot for another service to begin with: the snapshot numbered `wanted`, if it still exists; else
    /// one made in the last seconds; or a new one if `fresh` is true. Waits for at most half of `patience`, the time
    /// that the whole request may take.
    ///
    /// # Errors
    /// [`Error::Conflict`] if indexes identify blocks by hashes under a secret key of this process,
    /// [`Error::Unavailable`] if the snapshot cannot be made in time or at all.
    pub async fn snapshot(
        &self,
        wanted: Option<u64>,
        fresh: bool,
        patience: Duration,
    ) -> Result<Arc<PackedSnapshot>, Error> {
        if self.fleet.is_keyed() {
            return Err(Error::keyed_identity("there is no snapshot of it that others could use"));
        }
        let wait = (patience / 2).min(LONGEST_WAIT);
        let unavailable = |code, message| Error::Unavailable { code, message };
        let source: Arc<dyn Source> = self.fleet.clone();
        let spooled = self.fleet.snapshots().packed(&source, wanted, fresh, wait).await;
        let spooled = spooled.map_err(|message| unavailable("snapshot_failed", message))?;
        let not_ready =
            || unavailable("snapshot_not_ready", "a snapshot is being made: ask again in a second".to_owned());
        spooled.ok_or_else(not_ready)
    }

    /// Returns the answer to `/engines` as JSON.
    #[must_use]
    pub fn engines(&self) -> Value {
        report::engines(&self.fleet)
    }

    /// Returns the unmet conditions of readiness as JSON, as in the answer to `/ready?strict=1`; `None` if all are met.
    #[must_use]
    pub fn waiting(&self) -> Option<Value> {
        report::not_ready(&self.fleet)
    }

    /// Marks the follower as not ready from now on. Streams and queries continue.
    pub fn leave(&self) {
        self.fleet.drain();
    }

    /// Marks the follower as not ready, and ends all streams and threads. Returns false if that took longer than
    /// `timeout`, so that streams were cut off. A second call does nothing.
    pub fn drain(&self, timeout: Duration) -> bool {
        self.drain_after(timeout, std::future::ready(true))
    }

    /// Stops the follower like [`drain`](Self::drain): marks it as not ready, and ends all streams and threads. Before
    /// the streams end, waits for the future `answered`, whose value is true if all running requests were answered.
    /// Returns true if the value is true and all streams ended within `timeout`.
    pub fn drain_after(&self, timeout: Duration, answered: impl Future<Output = bool>) -> bool {
        let Some(FollowerThreads { ingest, adopt, keeper }) = self.running.lock().take() else { return true };
        self.leave();
        if let Some(keeper) = keeper {
            // While the streams are still followed. Who is to close at once writes no more.
            keeper.stop((!timeout.is_zero()).then(|| Instant::now() + timeout.min(LAST_SNAPSHOT)));
        }
        let until = Instant::now() + timeout;
        let fleet = self.fleet.clone();
        let in_time = ingest.block_on(async {
            let answered = answered.await;
            let ended = tokio::time::timeout_at(until.into(), fleet.stop()).await.is_ok();
            answered && ended
        });
        drop(adopt);
        ingest.shutdown_timeout(END);
        in_time
    }

    /// Runs a future on the threads that follow streams, unless the follower has been stopped.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(running) = self.running.lock().as_ref() {
            running.ingest.spawn(work);
        }
    }

    fn wait<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<T, Error> {
        let (sender, receiver) = std::sync::mpsc::channel();
        {
            let running = self.running.lock();
            let Some(running) = running.as_ref() else { return Err(Error::Closed) };
            running.ingest.spawn(async move {
                let _ = sender.send(work.await);
            });
        }
        receiver.recv().map_err(|_| Error::Closed)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.drain(Duration::ZERO);
    }
}

/// Listens at an address for engines that connect to the service.
fn listen_for_engines(
    at: SocketAddr,
    room: Room,
    fleet: &Arc<Fleet>,
    allow: &Arc<AllowList>,
    ingest: &Runtime,
) -> Result<(), Error> {
    let listener = ingest
        .block_on(TcpListener::bind(at))
        .map_err(|error| Error::Start { message: format!("streams.bind: cannot listen at {at}: {error}") })?;
    let port = listener.local_addr().map_or(at.port(), |at| at.port());
    tracing::info!(address = %at, port, "listening for engines that connect");
    let publishers = fleet.publishers().clone();
    publishers.listens_at(port);
    let allow = allow.clone();
    let accept = publishers.accept(listener, port, room, move |peer| allow.has_peer(peer));
    ingest.spawn(accept);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_in_a_registration_is_an_internal_error_and_leaves_nothing() {
        let config = Config::from_json(r#"{ "log": { "level": "off" } }"#).expect("a configuration");
        let follower = Follower::start(config, false).expect("threads");
        let engine = |name: &str| {
            format!(
                r#"{{ "instance_id": "{name}", "endpoint": "tcp://127.0.0.1:9", "model_name": "m", "block_size": 4 }}"#
            )
        };
        follower.fleet().fail_next_registration();
        assert_eq!(follower.register(&engine("w"), None), Err(Error::Internal));
        // As if there had been no query.
        assert_eq!(follower.workers(), serde_json::json!([]));
        assert!(follower.fleet().keyspace("m", "default").is_none_or(|keyspace| !keyspace.has_streams()));
        assert_eq!(follower.register(&engine("w"), None), Ok(true));
        follower.fleet().fail_next_registration();
        assert_eq!(follower.register(&engine("v"), None), Err(Error::Internal));
        assert_eq!(follower.unregister("w", None), Ok(1));
    }
}
