//! Streams over real sockets, against an engine's sockets with faults. This file has the engine and the stream that follows
//! it, for the scenarios.

mod gaps;
mod limits;
mod lives;
mod nodes;
mod relay;
mod restarts;
mod secured;
mod truth;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use kvatlas_fake_engine::{BLOCK_SIZE, Chain, Publisher};
use kvatlas_follow::StreamContext;
use kvatlas_follow::config::StreamConfig;
use kvatlas_follow::fleet::Fleet;
use kvatlas_follow::state::{Counters, Keyspace, Registration, State, Stream};
use kvatlas_index::View;
use tokio::runtime::Handle;

pub(crate) const WORKER: &str = "engine-0";

/// The default configuration, with less patience.
pub(crate) fn impatient() -> StreamConfig {
    StreamConfig {
        stale_after: Duration::from_secs(2),
        probe_interval: Duration::from_millis(500),
        replay_timeout: Duration::from_millis(300),
        reconnect_max: Duration::from_millis(200),
        settle_timeout: Duration::from_secs(60),
        ..StreamConfig::default()
    }
}

/// For engines that have very much to replay: whoever gives them up too soon only gives them more to do.
pub(crate) fn patient() -> StreamConfig {
    StreamConfig { replay_timeout: Duration::from_secs(30), ..impatient() }
}

pub(crate) fn registration(events: &str, replay: Option<&str>) -> Registration {
    Registration {
        worker: WORKER.to_owned(),
        names: None,
        model: "model".to_owned(),
        routing_group: "default".to_owned(),
        block_size: BLOCK_SIZE,
        rank: 0,
        endpoint: events.parse().expect("an endpoint"),
        replay_endpoint: replay.map(|replay| replay.parse().expect("an endpoint")),
        topic: String::new(),
        count_copies: true,
        host_chunk: None,
        source: "test".to_owned(),
    }
}

/// A stream that follows an engine.
pub(crate) struct Bench {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) stream: Arc<Stream>,
    keyspace: Arc<Keyspace>,
}

impl Bench {
    pub(crate) async fn new(registration: Registration, context: impl Into<StreamContext>) -> Self {
        let fleet = Fleet::new(context, &[], Handle::current());
        fleet.register(registration).await.expect("it is registered");
        let worker = fleet.workers().remove(0);
        Self { fleet, stream: worker.streams[0].1.clone(), keyspace: worker.keyspace }
    }

    pub(crate) async fn of(engine: &Publisher) -> Self {
        Self::new(registration(&engine.events, Some(&engine.replay)), impatient()).await
    }

    pub(crate) async fn without_replay(engine: &Publisher) -> Self {
        Self::new(registration(&engine.events, None), impatient()).await
    }

    /// Number of blocks of a life that are known, of so many.
    pub(crate) fn depth(&self, life: u32, of: u64) -> u64 {
        let prompt = self.keyspace.identity().words(&Chain::new(life).tokens(of + 1), BLOCK_SIZE as usize, None, None);
        let found = self.keyspace.index().find(&prompt).to_owned();
        found
            .scores(View::Device)
            .iter()
            .find(|(worker, _)| &***worker == WORKER)
            .map_or(0, |(_, depth)| u64::from(*depth))
    }

    /// Number of workers that hold anything of so many blocks of a life.
    pub(crate) fn holders(&self, life: u32, of: u64) -> usize {
        let prompt = self.keyspace.identity().words(&Chain::new(life).tokens(of), BLOCK_SIZE as usize, None, None);
        self.keyspace.index().find(&prompt).to_owned().scores(View::Device).len()
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        let at = Counters::NAMES.iter().position(|(known, _)| *known == name).expect("a counter");
        self.stream.status.counters.values()[at]
    }

    pub(crate) fn is_trusted(&self) -> bool {
        self.stream.status.is_trusted()
    }

    pub(crate) fn is_partial(&self) -> bool {
        self.stream.status.partial.load(Relaxed)
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.stream.status.is_settled()
    }

    pub(crate) fn last_seq(&self) -> Option<u64> {
        self.stream.status.last_seq()
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.stream.status.epoch.load(Relaxed)
    }

    pub(crate) fn state(&self) -> State {
        self.stream.status.state()
    }

    /// Waits until so many blocks of a life are known, neither more nor less, and trusted.
    #[track_caller]
    pub(crate) fn whole(&self, life: u32, blocks: u64) -> impl Future<Output = ()> {
        self.until("whole", move |bench| {
            bench.is_trusted() && bench.depth(life, blocks) == blocks && bench.last_seq().is_some()
        })
    }

    #[track_caller]
    pub(crate) fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            let start = Instant::now();
            while !condition(self) {
                assert!(start.elapsed() < Duration::from_secs(60), "not {what}, {caller}: {:?}", self.stream.status);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }

    /// Publishes until the stream hears it: without a replay, nothing says when the subscription takes effect.
    pub(crate) async fn hears(&self, engine: &Publisher) {
        let heard = |bench: &Self| {
            engine.publish(1);
            bench.last_seq().is_some()
        };
        self.until("heard", heard).await;
    }

    /// All blocks evicted once: whatever was applied twice remains.
    pub(crate) async fn leaves_nothing(&self, engine: &Publisher, life: u32, blocks: u64) {
        engine.evict();
        self.until("empty", |bench| bench.is_trusted() && bench.depth(life, blocks) == 0).await;
        assert_eq!(self.holders(life, blocks), 0);
    }
}

/// A scenario with an engine that keeps so many batches for its replay socket.
pub(crate) fn with_engine(keeps: usize, scenario: impl AsyncFnOnce(&Publisher)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime").block_on(async { scenario(&Publisher::start(keeps)).await });
}

/// A scenario with an engine that keeps 10,000 batches, as engines do by default, and a stream that follows it and
/// knows so many blocks of its first life.
pub(crate) fn with_blocks(blocks: u64, scenario: impl AsyncFnOnce(&Publisher, &Bench)) {
    with_engine(10_000, async |engine| {
        let bench = Bench::of(engine).await;
        if blocks > 0 {
            engine.publish(blocks);
            bench.whole(1, blocks).await;
        }
        scenario(engine, &bench).await;
    });
}
