//! Tests of what could be wrong without a word: each is either put right or said.

use std::time::{Duration, Instant};

use kvatlas_fake_engine::{CuttableProxy, Publisher};
use kvatlas_follow::config::StreamConfig;
use kvatlas_follow::state::{Registration, State};

use crate::{Bench, impatient, registration, with_blocks, with_engine};

/// Looks for so long whether that ever happens.
async fn never(bench: &Bench, seconds: f64, what: &str, happens: impl Fn(&Bench) -> bool) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs_f64(seconds) {
        assert!(!happens(bench), "{what}: {:?}", bench.stream.status);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[test]
fn a_removal_that_cannot_be_read_is_read_from_the_replay() {
    with_blocks(10, async |engine, bench| {
        engine.publish(1);
        bench.whole(1, 11).await;
        engine.evict_unreadably(true);
        bench.until("empty", |bench| bench.is_trusted() && bench.depth(1, 11) == 0).await;
        assert_eq!((bench.count("resets"), bench.epoch(), bench.is_partial()), (0, 0, false));
        assert!(bench.stream.status.refused().iter().sum::<u64>() > 0);
        assert_eq!(bench.last_seq(), Some(11));
    });
}

#[test]
fn a_removal_that_nobody_can_read_costs_the_holdings() {
    with_blocks(10, async |engine, bench| {
        engine.publish(1);
        bench.whole(1, 11).await;
        engine.evict_unreadably(false);
        bench.until("reset", |bench| bench.is_trusted() && bench.depth(1, 11) == 0).await;
        assert_eq!((bench.count("resets"), bench.is_partial()), (1, true));
        assert!(bench.stream.status.last_error().is_some());
    });
    with_engine(10_000, async |engine| {
        let bench = Bench::without_replay(engine).await;
        bench.hears(engine).await;
        engine.evict_unreadably(false);
        bench.until("reset", |bench| bench.count("resets") == 1 && bench.is_trusted()).await;
        assert_eq!((bench.holders(1, 1), bench.is_partial()), (0, true));
    });
}

#[test]
fn a_store_that_cannot_be_read_is_said_to_be_missing_until_all_is_cleared() {
    with_blocks(10, async |engine, bench| {
        engine.publish_unreadably();
        bench.until("partial", Bench::is_partial).await;
        bench.whole(1, 10).await;
        assert_eq!((bench.count("resets"), bench.count("gaps")), (0, 0));
        engine.clear();
        bench.until("cleared", |bench| bench.depth(1, 10) == 0 && !bench.is_partial() && bench.is_trusted()).await;
    });
}

#[test]
fn blocks_announced_again_are_no_copies_where_the_registration_says_so() {
    with_engine(10_000, async |engine| {
        let reports_in_full =
            Registration { count_copies: false, ..registration(&engine.events, Some(&engine.replay)) };
        let bench = Bench::new(reports_in_full, impatient()).await;
        engine.publish(5);
        bench.whole(1, 5).await;
        engine.announce_again();
        bench.until("heard", |bench| bench.last_seq() == Some(9)).await;
        bench.leaves_nothing(engine, 1, 5).await;
    });
}

#[test]
fn whom_a_stream_feeds_does_not_change() {
    with_blocks(3, async |engine, bench| {
        // Both of them call themselves rank 0.
        let other = Publisher::start(10_000);
        let mut second = registration(&other.events, Some(&other.replay));
        second.rank = 1;
        other.publish(5);
        bench.fleet.register(second).await.expect("it is registered");
        bench.until("read", |bench| bench.depth(1, 5) == 5).await;
        engine.publish(1);
        assert_eq!(bench.fleet.unregister(crate::WORKER, None, Some(0)).await, Ok(1));
        other.publish(1);
        other.evict();
        bench.until("evicted", |bench| bench.holders(1, 6) == 0).await;
    });
}

#[test]
fn batches_that_did_not_fit_are_waited_for() {
    with_engine(10_000, async |engine| {
        let config = StreamConfig { buffer_batches: 10, ..impatient() };
        let bench = Bench::new(registration(&engine.events, Some(&engine.replay)), config).await;
        bench.until("live", Bench::is_trusted).await;
        bench.hears(engine).await;
        // Until all has come and the questions asked at first are answered.
        tokio::time::sleep(Duration::from_millis(1200)).await;
        let known = bench.last_seq().expect("heard") + 1;
        bench.whole(1, known).await;
        let hang = engine.interrupt(30);
        engine.lose(1);
        engine.publish(1);
        let all = known + 32;
        bench.until("forgotten", |bench| bench.count("overflowed_batches") > 0).await;
        never(&bench, 0.5, "trusted", |bench| bench.is_trusted() && bench.depth(1, all) < all).await;
        drop(hang);
        bench.whole(1, all).await;
        assert_eq!(bench.count("resets"), 0);
    });
}

#[test]
fn the_replay_socket_goes_with_the_live_one() {
    with_engine(10_000, async |engine| {
        let port = engine.replay.rsplit(':').next().and_then(|port| port.parse().ok());
        let proxy = CuttableProxy::new(port.expect("a port"));
        let replay = proxy.endpoint();
        let bench = Bench::new(registration(&engine.events, Some(&replay)), impatient()).await;
        engine.publish(10);
        bench.whole(1, 10).await;
        // The old process is still there for those who are connected; another one has its addresses.
        drop(proxy);
        engine.kill_live();
        let next = Publisher::start_at(10_000, 7, 20, &engine.events, &replay);
        bench.whole(7, 20).await;
        assert_eq!((bench.depth(1, 10), bench.epoch()), (0, 1));
        next.publish(20);
        bench.whole(7, 40).await;
    });
}

#[test]
fn a_busy_stream_is_verified_as_soon_as_there_is_somebody_to_ask() {
    with_blocks(5, async |engine, bench| {
        engine.restart_unheard(5);
        bench.until("connected", |bench| bench.count("reconnects") == 1).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        let busy = |bench: &Bench| {
            engine.publish(1);
            bench.count("unverified_reconnects") == 1
        };
        bench.until("taken for the same", busy).await;
        assert_eq!((bench.count("resets"), bench.epoch()), (0, 0));
        // All questions have been given up.
        for _ in 0..100 {
            engine.publish(1);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        engine.revive_replay();
        let start = Instant::now();
        let verified = |bench: &Bench| {
            engine.publish(1);
            bench.epoch() == 1
        };
        bench.until("verified", verified).await;
        assert!(start.elapsed() < Duration::from_secs(30));
        let is_whole = |bench: &Bench| {
            let blocks = bench.last_seq().map_or(1, |seq| seq + 1);
            bench.is_trusted() && bench.depth(2, blocks) == blocks
        };
        bench.until("whole", is_whole).await;
        assert_eq!(bench.depth(1, 5), 0);
    });
}

#[test]
fn losses_are_counted() {
    with_engine(50, async |engine| {
        engine.publish(100);
        let bench = Bench::of(engine).await;
        bench.until("live", |bench| bench.is_trusted() && bench.last_seq() == Some(99)).await;
        assert_eq!((bench.count("lost_batches"), bench.count("gaps"), bench.count("resets")), (50, 1, 0));
        assert!(bench.is_partial());
    });
    with_engine(50, async |engine| {
        let bench = Bench::without_replay(engine).await;
        bench.hears(engine).await;
        let (lost, gaps) = (bench.count("lost_batches"), bench.count("gaps"));
        engine.publish(10);
        engine.rewind();
        engine.lose(4);
        engine.publish(1);
        bench.until("restarted", |bench| bench.epoch() == 1).await;
        assert_eq!((bench.count("lost_batches"), bench.count("gaps")), (lost + 4, gaps + 1));
    });
}

#[test]
fn a_replay_that_dribbles_is_not_waited_for_without_end() {
    with_engine(10_000, async |engine| {
        engine.publish(40);
        engine.dribble(Duration::from_millis(200));
        let config = StreamConfig {
            replay_total_timeout: Duration::from_secs(1),
            settle_timeout: Duration::from_secs(1),
            ..impatient()
        };
        let bench = Bench::new(registration(&engine.events, Some(&engine.replay)), config).await;
        let start = Instant::now();
        bench.until("given up", |bench| bench.is_settled() && bench.count("failed_replays") > 0).await;
        // All of it would take 8 s.
        assert!(start.elapsed() < Duration::from_secs(7));
        assert!(!bench.is_trusted() || bench.is_partial());
    });
}

#[test]
fn two_publishers_on_one_endpoint_are_said_to_be() {
    for replay in [true, false] {
        with_engine(10_000, async |engine| {
            let bench = if replay { Bench::of(engine).await } else { Bench::without_replay(engine).await };
            bench.hears(engine).await;
            let told = |bench: &Bench| {
                engine.publish_in_turns(2);
                bench.stream.status.last_error().is_some_and(|error| error.contains("publishers"))
            };
            bench.until("told", told).await;
            assert!(!bench.is_trusted());
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(3) {
                engine.publish_in_turns(1);
                assert!(!bench.is_trusted(), "{:?}", bench.stream.status);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
    }
}

#[test]
fn events_of_unknown_types_cost_the_holdings_and_in_the_end_the_trust() {
    with_blocks(10, async |engine, bench| {
        for known in 1..=3 {
            engine.publish_unknown();
            let questions = bench.count("replays");
            bench.until("forgotten", |bench| bench.count("resets") == known && bench.is_trusted()).await;
            assert_eq!((bench.holders(1, 10), bench.is_partial(), bench.count("replays")), (0, true, questions));
            engine.publish(1);
            bench.until("heard", |bench| bench.last_seq() == Some(9 + 2 * known) && bench.is_trusted()).await;
        }
        engine.publish_unknown();
        bench.until("unreadable", |bench| bench.state() == State::Unreadable && !bench.is_trusted()).await;
        for _ in 0..50 {
            engine.publish_unknown();
            engine.publish(1);
        }
        bench.until("heard", |bench| bench.last_seq() == Some(116)).await;
        assert_eq!((bench.count("resets"), bench.state(), bench.is_trusted()), (3, State::Unreadable, false));
        let error = bench.stream.status.last_error().expect("it says why");
        assert!(error.contains("BlocksSeenAsLate"), "{error}");
        engine.clear();
        bench.until("cleared", |bench| bench.is_trusted() && !bench.is_partial()).await;
    });
}

#[test]
fn a_busy_engine_that_hangs_is_not_trusted_for_long() {
    with_engine(10_000, async |engine| {
        // Nothing else would notice within the time that this may take.
        let config = StreamConfig { stale_after: Duration::from_secs(600), ..impatient() };
        let bench = Bench::new(registration(&engine.events, Some(&engine.replay)), config).await;
        bench.until("live", Bench::is_trusted).await;
        for _ in 0..60 {
            engine.publish(1);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bench.whole(1, 60).await;
        let hang = engine.pause();
        bench.until("stale", |bench| bench.state() == State::Stale && !bench.is_trusted()).await;
        drop(hang);
        bench.whole(1, 60).await;
        engine.publish(1);
        bench.whole(1, 61).await;
        assert_eq!((bench.count("resets"), bench.epoch(), bench.count("reconnects")), (0, 0, 0));
    });
}

#[test]
fn an_error_is_over_when_all_is_well() {
    with_blocks(10, async |engine, bench| {
        engine.down();
        bench.until("told", |bench| bench.stream.status.last_error().is_some()).await;
        engine.restart();
        engine.publish(3);
        bench.whole(2, 3).await;
        bench.until("over", |bench| bench.stream.status.last_error().is_none()).await;
        assert!(bench.stream.status.previous_error().is_some());
    });
}
