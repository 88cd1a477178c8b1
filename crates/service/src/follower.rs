//! [`Follower`]: engines' event streams followed into indexes, with all that belongs to them but HTTP.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::Response;
use hyper::header::HeaderMap;
use kvatlas_http::Denied;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use crate::adopt::{self, Desk};
use crate::allow::Allow;
use crate::config::{Config, StreamConfig};
use crate::error::Error;
use crate::fleet::{EngineReport, Fleet, Registering};
use crate::http;
use crate::log;
use crate::reader;
use crate::relay::Relay;
use crate::sites::{Digests, KeyspaceDigest};
use crate::snapshot::{self, Directory, Keeper, Origin, Snapshots, read_file};
use crate::state::{Keyspace, lock};

/// How long threads may take to end when a follower is dropped.
const END: Duration = Duration::from_secs(2);

/// How long streams may take to be copied for a last snapshot.
const LAST_SNAPSHOT: Duration = Duration::from_secs(10);

/// Engines' event streams, followed into indexes. It listens nowhere but at `streams.bind`: a router has one in its
/// process, and [`Service`](crate::Service) answers over HTTP from one. Its methods wait, so they are not for calls from
/// inside an async runtime.
pub struct Follower {
    fleet: Arc<Fleet>,
    /// Which endpoints may be registered.
    pub(crate) allow: Arc<Allow>,
    /// Where prompts are left that may tell what was never announced.
    pub(crate) desk: Arc<Desk>,
    running: Mutex<Option<Running>>,
    digests: Digests,
}

struct Running {
    ingest: Runtime,
    adopt: Adopting,
    keeper: Option<Keeper>,
}

/// The thread that adopts; it ends with this.
struct Adopting {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Adopting {
    fn drop(&mut self) {
        self.desk.close();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that learns blocks announced earlier has failed");
        }
    }
}

impl Follower {
    /// Starts; engines can be registered as soon as this returns. The settings in `config.http` are not for it.
    /// `asks_for_key`: whether those who register over HTTP, if anybody can, must show a key.
    ///
    /// # Errors
    /// [`Error::Start`] if an address of `streams.bind` cannot be listened at, or there are no threads to be had.
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
        let directory = config.snapshot.dir.as_deref().map(Directory::open).transpose()?;
        let snapshots = Arc::new(Snapshots::new(config.snapshot));
        let relay = Arc::new(Relay::new(config.relay));
        ingest.block_on(relay.start(&config.streams))?;
        let streams = StreamConfig { snapshots: snapshots.clone(), relay: relay.clone(), ..config.streams };
        let mut holds = config.holds;
        holds.extend(reader::holds(&relay));
        if snapshots.is_loading() {
            holds.push(snapshot::HOLD.to_owned());
            ingest.spawn(snapshots.clone().expire());
        }
        let fleet = Fleet::new(streams.clone(), &holds, ingest.handle().clone());
        reader::start(&fleet, &relay, &streams, ingest.handle());
        let adopt = adopt::start(&fleet, config.adopt.share, &streams)?;
        let desk = streams.desk.clone();
        let adopt = Adopting { desk: desk.clone(), thread: adopt };
        let allow = Arc::new(Allow::new(&streams.allow, !asks_for_key)?);
        for at in &streams.bind {
            listen_for_engines(*at, &streams, &fleet, &allow, &ingest)?;
        }
        let keeper = directory.map(|directory| Keeper::start(snapshots, fleet.clone(), directory)).transpose()?;
        let running = Mutex::new(Some(Running { ingest, adopt, keeper }));
        Ok(Self { fleet, allow, desk, running, digests: Digests::new(config.sites.grain) })
    }

    /// Who is registered.
    #[must_use]
    pub fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// Registers what a body of `/register` says, which may name its `source` too. True if that is new.
    ///
    /// `announced_by`: the host of the engine that named the endpoints; they must be there or be allowed. None if the
    /// operator named them: that is fine.
    ///
    /// # Errors
    /// As `/register` has them.
    pub fn register(&self, json: &str, announced_by: Option<&str>) -> Result<bool, Error> {
        let registration = http::registration(json.as_bytes())
            .map_err(|refusal| Error::Invalid { code: refusal.code, message: refusal.message })?;
        if announced_by.is_some() {
            http::check_allowed(&self.allow, &registration, announced_by)?;
        }
        let fleet = self.fleet.clone();
        let registering = self.wait(async move { fleet.register(registration).await })??;
        Ok(registering == Registering::New)
    }

    /// Whether an endpoint may be followed that the engine at `announced_by` named.
    ///
    /// # Errors
    /// [`Error::Forbidden`] if it may not, [`Error::Invalid`] if it is none.
    pub fn check_allowed(&self, endpoint: &str, announced_by: &str) -> Result<(), Error> {
        self.allow.check(&endpoint.parse()?, Some(announced_by))
    }

    /// Unregisters a worker, or one rank of it. Returns the number of streams ended.
    ///
    /// # Errors
    /// [`Error::Unknown`] if it is not registered.
    pub fn unregister(&self, worker: &str, rank: Option<u32>) -> Result<usize, Error> {
        let fleet = self.fleet.clone();
        let worker = worker.to_owned();
        self.wait(async move { fleet.unregister(&worker, None, rank).await })?
    }

    /// Appends what `/metrics` says of engines, streams and indexes, for who has it as a part; without the line that ends it.
    ///
    /// # Errors
    /// If `out` takes no more.
    pub fn write_metrics(&self, out: &mut String) -> std::fmt::Result {
        http::embedded_metrics(&self.fleet, &self.desk, out)
    }

    /// What `/workers` says.
    #[must_use]
    pub fn workers(&self) -> Value {
        http::workers(&self.fleet, None, None)
    }

    /// Discovery says how far it is with an engine: an [`EngineReport`] in JSON.
    ///
    /// # Errors
    /// [`Error::Config`] if it is none.
    pub fn report_engine(&self, report: &str) -> Result<(), Error> {
        let report: EngineReport = serde_json::from_str(report).map_err(|error| Error::config(error.to_string()))?;
        self.fleet.report(report);
        Ok(())
    }

    /// Discovery follows an engine, or a configured stream, no more. False if it did not.
    pub fn forget_engine(&self, worker: &str, rank: Option<u32>) -> bool {
        self.fleet.forget(worker, rank)
    }

    /// Loads a snapshot of another service from a file, where `snapshot.from_peer` has streams wait for one. `url`: where it
    /// is from. Returns the number of streams in it.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if it cannot be used; the streams begin without it.
    pub fn load_snapshot(&self, file: &Path, url: &str) -> Result<u64, Error> {
        let snapshots = self.fleet.snapshots();
        let read = read_file(file, snapshots.config.max_bytes).map_err(|error| format!("{}: {error}", file.display()));
        let read = read.map_err(|message| Error::Snapshot { message });
        let loaded = read.and_then(|bytes| snapshots.read(&bytes, Origin { kind: "peer", file: url.to_owned() }));
        self.no_snapshot(loaded.as_ref().err().map(ToString::to_string).as_deref());
        loaded
    }

    /// The streams need not wait for a snapshot of another service any more. `why`: why there is none.
    pub fn no_snapshot(&self, why: Option<&str>) {
        let snapshots = self.fleet.snapshots();
        if let Some(why) = why {
            snapshots.counts.refused.fetch_add(1, Relaxed);
            tracing::error!(why, "the snapshot of another service cannot be used; the streams begin without it");
        }
        snapshots.loaded(&self.fleet);
    }

    /// What has changed in each keyspace since the last call, for the service above many sites; of a keyspace that `whole`
    /// has, by model and routing group, all there is.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the site cannot be called so.
    pub fn site_digests(&self, site: &str, whole: &[(String, String)]) -> Result<Vec<KeyspaceDigest>, Error> {
        let is_whole = |model: &str, group: &str| whole.iter().any(|(a, b)| a == model && b == group);
        let keyspaces = self.fleet.keyspaces();
        let next = |it: &Arc<Keyspace>| self.digests.next(site, it, is_whole(&it.model, &it.routing_group));
        keyspaces.iter().map(next).collect()
    }

    /// Answers `GET /snapshot`, for a server of the caller's own: the whole, or the part that the headers ask for.
    /// `patience`: how long a request may take; a client that would wait longer is told to ask again.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn snapshot(
        &self,
        headers: &HeaderMap,
        head: bool,
        patience: Duration,
    ) -> Result<Response<Bytes>, Denied> {
        Ok(http::snapshot(&self.fleet, headers, head, patience).await?)
    }

    /// What `/engines` says.
    #[must_use]
    pub fn engines(&self) -> Value {
        http::engines(&self.fleet)
    }

    /// What answers wait for, as `/ready?strict=1` says it; nothing if they are whole.
    #[must_use]
    pub fn waiting(&self) -> Option<Value> {
        http::waiting(&self.fleet)
    }

    /// Says from now on that it is not ready. All else goes on.
    pub fn leave(&self) {
        self.fleet.drain();
    }

    /// Says that it is not ready, ends all streams and threads. False if that took longer than `timeout` and something was
    /// cut off. Does nothing the second time.
    pub fn drain(&self, timeout: Duration) -> bool {
        self.drain_after(timeout, std::future::ready(true))
    }

    /// The same, but streams end after `answered`, which says whether all requests were answered; it is given up as
    /// soon as `timeout` is over.
    pub(crate) fn drain_after(&self, timeout: Duration, answered: impl Future<Output = bool>) -> bool {
        let Some(Running { ingest, adopt, keeper }) = lock(&self.running).take() else { return true };
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

    /// Runs on the threads that follow streams.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(running) = lock(&self.running).as_ref() {
            running.ingest.spawn(work);
        }
    }

    fn wait<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<T, Error> {
        let (sender, receiver) = std::sync::mpsc::channel();
        {
            let running = lock(&self.running);
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

/// Accepts the connections of engines that do not listen themselves.
fn listen_for_engines(
    at: SocketAddr,
    config: &StreamConfig,
    fleet: &Arc<Fleet>,
    allow: &Arc<Allow>,
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
    let accept = publishers.accept(listener, port, config.clone(), move |peer| allow.has_peer(peer));
    ingest.spawn(accept);
    Ok(())
}
