//! Streams that begin: late, during a burst, before their engine.

use std::sync::Arc;
use std::time::Duration;

use kvatlas_fake_engine::{BLOCK_SIZE, Chain};
use kvatlas_follow::StreamContext;
use kvatlas_follow::config::StreamConfig;
use kvatlas_index::View;
use kvatlas_index::hash::content_hashes;
use kvatlas_wire::Identity;

use crate::bench::{Bench, impatient, patient, registration, with_engine};

#[test]
fn a_late_joiner_knows_what_was_before() {
    with_engine(10_000, async |engine| {
        engine.publish(500);
        let bench = Bench::of(engine).await;
        bench.whole(1, 500).await;
        assert!(!bench.is_partial() && bench.is_settled());
        engine.publish(100);
        bench.whole(1, 600).await;
        assert!(bench.stream.status.lag().is_some_and(|lag| lag < Duration::from_secs(30)));
        bench.leaves_nothing(engine, 1, 600).await;
    });
}

#[test]
fn a_stream_under_a_key_is_known_by_nobody_elses_hashes() {
    with_engine(10_000, async |engine| {
        engine.publish(50);
        let config = StreamContext { identity: Arc::new(Identity::keyed()), ..impatient().into() };
        let bench = Bench::new(registration(&engine.events, Some(&engine.replay)), config).await;
        bench.whole(1, 50).await;
        let keyspace = bench.fleet.workers().remove(0).keyspace;
        let hashes = content_hashes(&Chain::new(1).tokens(50), BLOCK_SIZE as usize, None, None);
        assert_eq!(keyspace.index().find(&hashes).depth(View::AnyTier), 0);
        assert_eq!((bench.count("stored_blocks"), bench.count("collisions")), (50, 0));
        bench.leaves_nothing(engine, 1, 50).await;
    });
}

#[test]
fn a_late_joiner_without_replay_says_that_it_is_partial() {
    with_engine(10_000, async |engine| {
        engine.publish(5);
        let bench = Bench::without_replay(engine).await;
        bench.until("live", Bench::is_trusted).await;
        bench.hears(engine).await;
        assert!(bench.is_partial() && bench.is_trusted());
        assert_eq!(bench.depth(1, 5), 0);
    });
}

#[test]
fn a_burst_leaves_nothing_missing() {
    with_engine(10_000, async |engine| {
        let bench = Bench::new(registration(&engine.events, Some(&engine.replay)), patient()).await;
        bench.until("live", Bench::is_trusted).await;
        engine.publish(100_000);
        bench.whole(1, 100_000).await;
        assert!(!bench.is_partial());
        bench.leaves_nothing(engine, 1, 100_000).await;
    });
}

#[test]
fn a_burst_during_the_connection_leaves_nothing_missing() {
    with_engine(200_000, async |engine| {
        engine.publish(20_000);
        let bench = Bench::new(registration(&engine.events, Some(&engine.replay)), patient()).await;
        engine.publish(100_000);
        bench.whole(1, 120_000).await;
        assert!(!bench.is_partial());
        bench.leaves_nothing(engine, 1, 120_000).await;
    });
}

#[test]
fn a_small_buffer_is_made_up_for_by_replays() {
    with_engine(200_000, async |engine| {
        engine.publish(20_000);
        let config = StreamConfig { buffer_batches: 10, ..patient() };
        let bench = Bench::new(registration(&engine.events, Some(&engine.replay)), config).await;
        engine.publish(20_000);
        bench.whole(1, 40_000).await;
        bench.leaves_nothing(engine, 1, 40_000).await;
    });
}

#[test]
fn an_engine_can_come_after_its_registration() {
    with_engine(10_000, async |engine| {
        engine.down();
        let bench = Bench::of(engine).await;
        bench.until("refused", |bench| bench.stream.status.last_error().is_some()).await;
        assert!(!bench.is_trusted() && !bench.is_settled());
        engine.restart();
        engine.publish(3);
        bench.whole(2, 3).await;
        assert!(bench.is_settled());
    });
}

#[test]
fn an_engine_that_never_comes_holds_back_readiness_for_a_while_only() {
    with_engine(10_000, async |engine| {
        engine.down();
        let config = StreamConfig { settle_timeout: Duration::from_millis(300), ..impatient() };
        let bench = Bench::new(registration(&engine.events, Some(&engine.replay)), config).await;
        bench.until("settled", |bench| bench.is_settled()).await;
        assert!(!bench.is_trusted());
    });
}

#[test]
fn names_and_files_are_addresses_too() {
    with_engine(10_000, async |engine| {
        engine.publish(3);
        let named = |address: &str| address.replace("127.0.0.1", "localhost");
        let registration = registration(&named(&engine.events), Some(&named(&engine.replay)));
        let bench = Bench::new(registration, impatient()).await;
        bench.whole(1, 3).await;
        engine.publish(3);
        bench.whole(1, 6).await;
    });
}
