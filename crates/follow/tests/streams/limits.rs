//! Limits that are reached, and keyspaces without workers.

use kvatlas_fake_engine::Publisher;
use kvatlas_follow::config::StreamConfig;
use kvatlas_follow::fleet::Fleet;
use kvatlas_follow::limits::{Limit, LimitsConfig};
use kvatlas_follow::state::{Registration, State};
use tokio::runtime::Handle;

use crate::{Bench, impatient, registration, with_engine};

fn limited(limits: LimitsConfig) -> StreamConfig {
    StreamConfig { limits, ..impatient() }
}

#[test]
fn too_many_blocks_cost_the_stream_that_brings_them() {
    for (limits, limit) in [
        (LimitsConfig { blocks_per_rank: 5000, ..StreamConfig::default().limits }, Limit::BlocksPerRank),
        (LimitsConfig { blocks_per_worker: 5000, ..StreamConfig::default().limits }, Limit::BlocksPerWorker),
    ] {
        with_engine(10_000, async |engine| {
            let bench = Bench::new(registration(&engine.events, Some(&engine.replay)), limited(limits)).await;
            engine.publish(3000);
            bench.whole(1, 3000).await;
            engine.publish(4500);
            bench.until("limited", |bench| bench.state() == State::Limited).await;
            let status = &bench.stream.status;
            assert_eq!((status.limit(), bench.is_trusted(), bench.is_settled()), (Some(limit), false, true));
            assert_eq!(bench.holders(1, 10), 0, "nothing is held of it");
            let error = status.last_error().expect("it says so");
            assert!(error.contains("holds") && error.contains(&format!("limits.{}", limit.name())), "{error}");
            assert_eq!(bench.fleet.shared().reached(limit), 1);
            assert!(bench.fleet.waiting().is_over(), "it does not hold readiness back");
            engine.publish(10);
            bench.until("read on", |bench| bench.last_seq() == Some(7509)).await;
            assert_eq!((bench.holders(1, 10), bench.state()), (0, State::Limited));

            // A new life begins with nothing.
            engine.restart();
            engine.publish(100);
            bench.whole(2, 100).await;
            assert_eq!((bench.state(), status.limit()), (State::Live, None));
            assert_eq!(bench.fleet.shared().reached(limit), 1);
        });
    }
}

#[test]
fn other_streams_are_untouched() {
    with_engine(10_000, async |large| {
        with_small(large).await;
    });
}

async fn with_small(large: &Publisher) {
    let small = Publisher::start(10_000);
    let limits = LimitsConfig { blocks_per_rank: 2000, ..StreamConfig::default().limits };
    let bench = Bench::new(registration(&small.events, Some(&small.replay)), limited(limits)).await;
    let mut registered = registration(&large.events, Some(&large.replay));
    registered.worker = "large".to_owned();
    bench.fleet.register(registered).await.expect("it is registered");
    small.publish(100);
    large.publish(5000);
    let state = |bench: &Bench| {
        bench.fleet.workers().into_iter().find(|it| &*it.name == "large").map(|it| it.streams[0].1.status.state())
    };
    bench.until("limited", |bench| state(bench) == Some(State::Limited)).await;
    bench.whole(1, 100).await;
    assert_eq!(bench.holders(1, 1), 1);
}

#[test]
fn registrations_have_limits() {
    with_engine(10, async |engine| {
        let limits = LimitsConfig { workers: 2, streams: 3, keyspaces: 2, ..StreamConfig::default().limits };
        let bench = Bench::new(registration(&engine.events, None), limited(limits)).await;
        let register = async |worker: &str, rank: u32, model: &str| {
            let mut it = registration(&engine.events, None);
            (it.worker, it.rank, it.model) = (worker.to_owned(), rank, model.to_owned());
            bench.fleet.register(it).await.err().map(|error| (error.code(), error.to_string()))
        };
        let refused = |error: Option<(&'static str, String)>, name: &str| {
            let (code, message) = error.expect("refused");
            assert!(code == "limit_reached" && message.contains(&format!("limits.{name}")), "{code} {message}");
        };
        assert_eq!(register("b", 0, "m2").await, None);
        refused(register("c", 0, "m2").await, "workers");
        assert_eq!(register("b", 1, "m2").await, None);
        refused(register("b", 2, "m2").await, "streams");
        assert_eq!(register("b", 1, "m2").await, None, "the same again is fine");
        bench.fleet.unregister("b", None, Some(1)).await.expect("it is there");
        assert_eq!(register("b", 2, "m2").await, None, "there is room again");
        bench.fleet.unregister("b", None, None).await.expect("it is there");
        assert_eq!(register("c", 0, "m3").await, None, "a keyspace without workers gives way");
        let shared = bench.fleet.shared();
        assert_eq!((shared.reached(Limit::Workers), shared.reached(Limit::Streams)), (1, 1));
    });
    with_engine(10, async |engine| {
        let limits = LimitsConfig { keyspaces: 1, ..StreamConfig::default().limits };
        let bench = Bench::new(registration(&engine.events, None), limited(limits)).await;
        let mut other = registration(&engine.events, None);
        (other.worker, other.model) = ("b".to_owned(), "other".to_owned());
        let error = bench.fleet.register(other.clone()).await.expect_err("there is one");
        assert!(error.code() == "limit_reached" && error.to_string().contains("limits.keyspaces"), "{error}");
        assert_eq!(bench.fleet.shared().reached(Limit::Keyspaces), 1);
    });
}

#[test]
fn buffers_together_have_a_limit_and_nothing_is_lost_by_it() {
    with_engine(100_000, async |engine| {
        let limits = LimitsConfig { buffer_bytes: 10_000, ..StreamConfig::default().limits };
        let bench = Bench::new(registration(&engine.events, Some(&engine.replay)), limited(limits)).await;
        engine.publish(10);
        bench.whole(1, 10).await;
        // While the replay socket is gone, what follows a gap has to wait.
        engine.kill_replay();
        engine.lose(1);
        engine.publish(2000);
        bench.until("full", |bench| bench.count("overflowed_batches") > 1000).await;
        // The batch that comes just now is counted before it is left out.
        bench.until("within the limit", |bench| bench.fleet.shared().buffered() <= 10_000).await;
        assert!(bench.fleet.shared().reached(Limit::BufferBytes) > 1000);
        engine.revive_replay();
        bench
            .until("going on", |bench| {
                engine.publish(1);
                bench.is_trusted()
            })
            .await;
        assert_eq!(bench.fleet.shared().buffered(), 0);
        bench.leaves_nothing(engine, 1, 2011).await;
    });
}

/// A registration of an engine that is not there.
fn nowhere(worker: &str, model: &str) -> Registration {
    Registration {
        worker: worker.to_owned(),
        names: None,
        model: model.to_owned(),
        routing_group: "default".to_owned(),
        block_size: 16,
        rank: 0,
        endpoint: "ipc:///nowhere/kvatlas".parse().expect("an endpoint"),
        replay_endpoint: None,
        topic: String::new(),
        count_copies: true,
        host_chunk: None,
        source: "test".to_owned(),
    }
}

#[tokio::test]
async fn keyspaces_without_workers_are_not_kept_without_end() {
    let fleet = Fleet::new(StreamConfig::default(), &[], Handle::current());
    fleet.register(nowhere("stays", "kept")).await.expect("new");
    let kept = fleet.keyspace("kept", "default").expect("it is there");
    for model in 0..1500 {
        let model = format!("model-{model}");
        fleet.register(nowhere("goes", &model)).await.expect("new");
        fleet.unregister("goes", None, None).await.expect("it is there");
        assert!(fleet.keyspace(&model, "default").is_some(), "the last worker leaving does not end a keyspace");
    }
    assert!(fleet.keyspaces().len() <= 1024);
    assert!(std::ptr::eq(&*kept, &*fleet.keyspace("kept", "default").expect("it has a worker")));
    fleet.stop().await;
}
