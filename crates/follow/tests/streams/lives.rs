//! Engines that restart, go away or hang, and streams that end.

use kvatlas_follow::state::State;

use crate::bench::{Bench, WORKER, with_blocks, with_engine};

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
