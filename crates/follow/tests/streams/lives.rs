//! Streams that begin and end: late, during a burst, before their engine; engines that restart, go away or hang; and
//! impostors, which listen at an address and are no engines.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use kvatlas_fake_engine::events::{greeting, impostor, message};
use kvatlas_fake_engine::{BLOCK_SIZE, Chain};
use kvatlas_follow::StreamContext;
use kvatlas_follow::config::StreamConfig;
use kvatlas_follow::state::State;
use kvatlas_index::View;
use kvatlas_index::hash::content_hashes;
use kvatlas_wire::Identity;

use crate::{Bench, WORKER, impatient, patient, registration, with_blocks, with_engine};

#[test]
fn a_restart_is_a_new_epoch() {
    with_blocks(50, async |engine, bench| {
        engine.restart();
        engine.publish(20);
        bench.whole(2, 20).await;
        assert_eq!((bench.depth(1, 50), bench.epoch()), (0, 1));
        assert!(bench.count("reconnects") >= 1);
        // With more batches than the life before.
        engine.restart();
        engine.publish(80);
        bench.whole(3, 80).await;
        assert_eq!((bench.depth(2, 20), bench.is_partial()), (0, false));
        bench.leaves_nothing(engine, 3, 80).await;
    });
}

#[test]
fn an_engine_that_restarted_and_says_nothing_holds_nothing() {
    with_blocks(50, async |engine, bench| {
        engine.restart();
        bench.until("empty", |bench| bench.is_trusted() && bench.depth(1, 50) == 0).await;
        assert_eq!(bench.last_seq(), None);
    });
}

#[test]
fn an_engine_that_is_gone_is_not_trusted_and_comes_back() {
    with_blocks(50, async |engine, bench| {
        engine.down();
        bench.until("stale", |bench| bench.state() == State::Stale).await;
        assert!(!bench.is_trusted());
        engine.restart();
        engine.publish(3);
        bench.whole(2, 3).await;
    });
}

#[test]
fn an_engine_that_hangs_is_stale_until_it_answers() {
    with_blocks(50, async |engine, bench| {
        let pause = engine.pause();
        bench.until("stale", |bench| bench.state() == State::Stale && !bench.is_trusted()).await;
        drop(pause);
        bench.whole(1, 50).await;
        assert_eq!((bench.count("resets"), bench.epoch()), (0, 0));
    });
}

#[test]
fn nothing_is_applied_after_the_removal() {
    with_engine(10_000, async |engine| {
        for _ in 0..5 {
            let bench = Bench::of(engine).await;
            bench.until("live", Bench::is_trusted).await;
            let published = engine.publish_meanwhile(20_000);
            let before = bench.count("batches");
            bench.until("busy", |bench| bench.count("batches") > before + 100).await;
            assert_eq!(bench.fleet.unregister(WORKER, None, None).await, Ok(1));
            let after = bench.count("batches");
            published.recv().expect("published");
            assert_eq!(bench.state(), State::Stopped);
            assert_eq!((bench.count("batches"), bench.fleet.workers().len()), (after, 0));
            assert_eq!(bench.holders(1, 10), 0);
        }
    });
}

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

/// A correct greeting and handshake of a PUB socket, and then this.
fn as_publisher(then: &[u8]) -> Vec<u8> {
    [&greeting("PUB"), then].concat()
}

#[test]
fn what_is_no_engine_hurts_nobody() {
    with_blocks(0, async |engine, bench| {
        let impostors = [
            b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
            (0..4000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect(),
            as_publisher(&[0x02, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, b'x']),
            as_publisher(&[0x04, 0x03, 0x09, b'a', b'b']),
            as_publisher(&message(&[b"", b"seq", b""])),
            as_publisher(&message(&[b"", &[0xff; 8], b"payload"])),
            as_publisher(&message(&[b"", b"", b"", b"", b"", b"", b"", b"", b"", b"", b""])),
            as_publisher(&message(&[b"", &[0x7f; 8], b"\x93"]).repeat(100)),
        ];
        let impostors = impostors.map(impostor);
        for (number, impostor) in impostors.iter().enumerate() {
            let address = impostor.endpoint();
            let mut registration = registration(&address, Some(&address));
            registration.worker = format!("impostor-{number}");
            bench.fleet.register(registration).await.expect("it is registered");
        }
        for round in 1..=40 {
            engine.publish(10);
            bench.whole(1, 10 * round).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for worker in bench.fleet.workers().iter().filter(|worker| worker.name.starts_with("impostor")) {
            let status = &worker.streams[0].1.status;
            bench.until("noticed", |_| status.last_error().is_some()).await;
            assert_eq!(status.counters.task_restarts.load(Relaxed), 0, "{}", worker.name);
        }
        assert_eq!((bench.count("reconnects"), bench.count("resets")), (0, 0));
        for number in 0..impostors.len() {
            assert_eq!(bench.fleet.unregister(&format!("impostor-{number}"), None, None).await, Ok(1));
        }
    });
}
