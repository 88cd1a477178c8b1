//! Data of the service's or router's web page: the streams and rates of a fleet, collected once a second for all
//! viewers.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use kvatlas_ui::{Feed, TooManyViewers, Viewer};
use kvatlas_wire::Reason;
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use crate::fleet::{EngineState, Fleet};
use crate::log::panic_text;
use crate::state::{Counters, Stream, StreamStatus};

/// Time between two data points of a chart, and between two updates sent to viewers.
const POINT: Duration = Duration::from_secs(1);

/// Number of data points kept for the fleet's charts, one per second: ten minutes.
pub const POINTS: usize = 600;

/// Number of data points kept for each engine's chart, one per second: one minute.
pub const ENGINE_POINTS: usize = 60;

/// Maximum number of viewers (connected clients) of the web page.
const VIEWERS: usize = 64;

/// Data of a web page, and the viewers (connected clients) that receive it.
pub struct Page {
    feed: Arc<Feed>,
    /// Notification, to the task that collects the page's data, that a viewer was added.
    watched: Notify,
}

/// Source of the data that a web page shows.
pub trait PageSource {
    /// Adds a data point to the charts of `feed`, the data of the page. Called once a second, even without viewers.
    fn point(&mut self, feed: &Feed);

    /// Returns the current state of the fleet or router as JSON, and adds new entries to the lists of `feed`, the data
    /// of the page. Called only if there are viewers.
    fn state(&mut self, feed: &Feed) -> Value;

    /// Records that the collection of the page's data has panicked, which is a bug; the log has the details.
    fn panicked(&mut self);
}

impl Default for Page {
    fn default() -> Self {
        Self { feed: Feed::new(VIEWERS), watched: Notify::new() }
    }
}

impl Page {
    /// Adds a viewer (a connected client) to the web page.
    ///
    /// # Errors
    /// [`TooManyViewers`] if there is the maximum number of viewers already.
    pub fn watch(&self) -> Result<Viewer, TooManyViewers> {
        let viewer = self.feed.watch()?;
        self.watched.notify_one();
        Ok(viewer)
    }

    /// Disconnects all viewers of the web page. Their open connections would otherwise delay the server's shutdown.
    pub fn close(&self) {
        self.feed.close();
    }

    /// Keeps the web page's data up to date, for as long as the returned future is polled.
    pub async fn keep(&self, mut gathering: impl PageSource) {
        let (started, mut point) = (Instant::now(), 0);
        loop {
            let until_point = (POINT * point).saturating_sub(started.elapsed());
            tokio::select! {
                // A new viewer sees the page at once.
                () = self.watched.notified() => {}
                () = tokio::time::sleep(until_point) => {}
            }
            let is_due = started.elapsed() >= POINT * point;
            if is_due {
                // After a pause, as of a laptop that slept, not one for each second missed.
                point = (started.elapsed().as_secs_f64() / POINT.as_secs_f64()) as u32 + 1;
            }
            let work = AssertUnwindSafe(|| {
                if is_due {
                    gathering.point(&self.feed);
                }
                if self.feed.viewers() > 0 {
                    let state = gathering.state(&self.feed);
                    self.feed.update(state);
                }
            });
            // A panic costs this update alone.
            if let Err(panic) = catch_unwind(work) {
                gathering.panicked();
                tracing::error!(
                    panic = panic_text(&*panic),
                    "internal error while the page's contents were being made"
                );
            }
        }
    }
}

/// Rounds a number to one decimal, because smaller changes need not be sent to viewers.
#[must_use]
pub fn tenth(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

/// Minimum time between two counts of the blocks in an index, each of which takes the index's write lock.
const COUNT_AGAIN: Duration = Duration::from_millis(500);

/// Shortest silence of a stream that the web page shows, because idle engines are regularly silent for less.
const SILENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, Default)]
struct BlockCounts {
    device: u64,
    offloaded: u64,
    unlinked: u64,
}

/// Observer of a fleet that computes rates per second, from the differences to the counts at its previous call.
pub struct FleetObserver {
    fleet: Arc<Fleet>,
    held: HashMap<(Arc<str>, u32), BlockCounts>,
    indexes: Value,
    counted: Option<Instant>,
    /// Number of events applied by each stream when rates were last computed, by the name of its row on the page.
    events: HashMap<String, u64>,
    /// Time at which rates were last computed.
    rated: Instant,
}

/// Rates and sums over the streams of a fleet, for the time since the previous computation.
#[derive(Debug, Clone, Default)]
pub struct Rates {
    /// Number of events that the service applied per second, for all streams together.
    pub events: f64,
    /// Number of events applied per second, and number of blocks held, for each row of the page by its name: a stream,
    /// or an engine that is not registered yet.
    pub rows: BTreeMap<String, (f64, u64)>,
    /// Number of blocks held on all tiers, over all streams.
    pub blocks: u64,
    /// Largest lag of any stream (time by which the index is behind the engine); `None` if unknown.
    pub lag: Option<Duration>,
}

impl FleetObserver {
    /// Creates an observer of a fleet.
    #[must_use]
    pub fn new(fleet: Arc<Fleet>) -> Self {
        let (held, events) = (HashMap::new(), HashMap::new());
        Self { fleet, held, indexes: json!({}), counted: None, events, rated: Instant::now() }
    }

    /// Returns the rows of the page in JSON, by name (`worker/rank`, or `worker`): one for each stream, and one for
    /// each engine that is not registered yet.
    pub fn rows(&mut self) -> Map<String, Value> {
        self.count();
        let mut rows = Map::new();
        for engine in self.fleet.engines() {
            if engine.state != EngineState::Registered {
                let row = json!({
                    "worker": &*engine.worker,
                    "endpoint": &*engine.url,
                    "state": engine.state.name(),
                    "error": engine.reason.as_deref(),
                });
                let name = engine.rank.map_or_else(|| engine.worker.to_string(), |rank| key(&engine.worker, rank));
                rows.insert(name, row);
            }
        }
        for worker in self.fleet.workers() {
            for (rank, stream) in &worker.streams {
                let mut row = self.row(stream);
                row["rank"] = (*rank).into();
                row["model"] = (*worker.keyspace.model).into();
                row["routing_group"] = (*worker.keyspace.routing_group).into();
                row["block_size"] = worker.keyspace.block_size.into();
                rows.insert(key(&worker.name, *rank), row);
            }
        }
        rows
    }

    /// Returns the sizes of the indexes in JSON, by model and routing group.
    #[must_use]
    pub fn indexes(&self) -> &Value {
        &self.indexes
    }

    /// Returns the rates of the fleet since the previous call of this function, usually a second ago.
    pub fn rates(&mut self) -> Rates {
        self.count();
        let seconds = self.rated.elapsed().as_secs_f64().max(1e-3);
        self.rated = Instant::now();
        let mut rates = Rates::default();
        let before = std::mem::take(&mut self.events);
        for worker in self.fleet.workers() {
            for (rank, stream) in &worker.streams {
                let name = key(&worker.name, *rank);
                let events = stream.status.counters.events.load(Relaxed);
                // A stream that is new has no rate yet: what it read at once is a replay.
                let more = before.get(&name).map_or(0, |before| events.saturating_sub(*before));
                let held = self.held_by(stream);
                let (rate, blocks) = (more as f64 / seconds, held.device + held.offloaded);
                rates.events += rate;
                rates.blocks += blocks;
                rates.lag = rates.lag.max(self.fleet.lag(stream));
                rates.rows.insert(name.clone(), (rate, blocks));
                self.events.insert(name, events);
            }
        }
        rates
    }

    fn row(&self, stream: &Stream) -> Value {
        let status = &stream.status;
        let held = self.held_by(stream);
        let lag = self.fleet.lag(stream);
        let mut row = json!({
            "worker": &*stream.worker,
            "endpoint": stream.registration.endpoint.as_str(),
            "replay_endpoint": stream.registration.replay_endpoint.as_ref().map(|endpoint| endpoint.as_str()),
            "state": status.state().name(),
            "trusted": status.is_trusted(),
            "settled": status.is_settled(),
            "epoch": status.epoch.load(Relaxed),
            "seq": status.last_seq(),
            "lag_ms": lag.map(millis),
            "lag_max_ms": millis(status.lag_max()),
            "silence_s": status.silence().filter(|silence| *silence > SILENCE).map(|silence| silence.as_secs()),
            "blocks": held.device,
            "offloaded": held.offloaded,
            "unlinked": held.unlinked,
            "buffered": status.buffered.load(Relaxed),
            "counts": counts(status),
            "refused": refused(status),
            "error": status.last_error(),
            "previous_error": status.previous_error().map(|(error, _)| error),
            "limit": status.limit().map(|limit| limit.name()),
        });
        for (name, flag) in [
            ("partial", &status.partial),
            ("unverified", &status.unverified),
            ("no_salts", &status.no_salts),
            ("upper_bound", &status.upper_bound),
        ] {
            if flag.load(Relaxed) {
                row[name] = true.into();
            }
        }
        row
    }

    fn held_by(&self, stream: &Stream) -> BlockCounts {
        stream.ranks().iter().fold(BlockCounts::default(), |sum, rank| {
            let held = self.held.get(&(stream.worker.clone(), *rank)).copied().unwrap_or_default();
            BlockCounts {
                device: sum.device + held.device,
                offloaded: sum.offloaded + held.offloaded,
                unlinked: sum.unlinked + held.unlinked,
            }
        })
    }

    fn count(&mut self) {
        if self.counted.is_some_and(|counted| counted.elapsed() < COUNT_AGAIN) {
            return;
        }
        self.counted = Some(Instant::now());
        self.held.clear();
        let mut indexes = Map::new();
        for keyspace in self.fleet.keyspaces() {
            let index = keyspace.index();
            for rank in index.ranks() {
                let held = BlockCounts {
                    device: rank.device_blocks,
                    offloaded: rank.offloaded_blocks,
                    unlinked: rank.unlinked,
                };
                self.held.insert((rank.worker, rank.rank), held);
            }
            let stats = index.stats();
            let index = json!({
                "model": &*keyspace.model,
                "routing_group": &*keyspace.routing_group,
                "block_size": keyspace.block_size,
                "blocks": stats.blocks,
                "prefixes": stats.positions,
                "bytes": stats.bytes,
            });
            indexes.insert(format!("{}/{}", keyspace.model, keyspace.routing_group), index);
        }
        self.indexes = Value::Object(indexes);
    }
}

fn key(worker: &str, rank: u32) -> String {
    format!("{worker}/{rank}")
}

/// Returns the counters of a stream that are not 0, as JSON.
fn counts(status: &StreamStatus) -> Map<String, Value> {
    let all = Counters::NAMES.iter().zip(status.counters.values());
    all.filter(|(_, count)| *count > 0).map(|((name, _), count)| ((*name).into(), count.into())).collect()
}

fn refused(status: &StreamStatus) -> Map<String, Value> {
    let all = Reason::ALL.iter().zip(status.refused());
    all.filter(|(_, count)| *count > 0).map(|(reason, count)| (reason.code().into(), count.into())).collect()
}

fn millis(duration: Duration) -> f64 {
    (duration.as_micros() as f64 / 100.0).round() / 10.0
}
