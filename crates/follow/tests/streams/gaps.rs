//! Batches that are lost, repeated, swapped or nonsense.

use crate::{Bench, with_blocks, with_engine};

#[test]
fn a_gap_is_filled() {
    with_blocks(10, async |engine, bench| {
        engine.lose(5);
        engine.publish(1);
        bench.whole(1, 16).await;
        assert_eq!((bench.count("gaps"), bench.count("resets"), bench.is_partial()), (1, 0, false));
        assert_eq!(bench.count("recovered_batches"), 5);
        bench.leaves_nothing(engine, 1, 16).await;
    });
}

#[test]
fn batches_lost_at_the_end_are_found_in_silence() {
    with_blocks(10, async |engine, bench| {
        engine.lose(5);
        bench.whole(1, 15).await;
        assert_eq!(bench.count("resets"), 0);
    });
}

#[test]
fn a_gap_without_replay_costs_the_holdings() {
    with_engine(10_000, async |engine| {
        let bench = Bench::without_replay(engine).await;
        bench.hears(engine).await;
        let before = bench.count("lost_batches");
        engine.lose(5);
        engine.publish(3);
        bench.until("reset", |bench| bench.count("resets") == 1 && bench.is_trusted()).await;
        assert_eq!((bench.is_partial(), bench.count("lost_batches") - before), (true, 5));
    });
}

#[test]
fn a_gap_that_the_engine_has_forgotten_costs_the_holdings() {
    with_engine(3, async |engine| {
        let bench = Bench::of(engine).await;
        engine.publish(3);
        bench.whole(1, 3).await;
        engine.lose(10);
        engine.publish(1);
        bench.until("reset", |bench| bench.count("resets") == 1 && bench.is_trusted()).await;
        assert!(bench.is_partial());
        assert_eq!((bench.depth(1, 14), bench.last_seq()), (0, Some(13)));
    });
}

#[test]
fn repeated_and_swapped_batches_do_no_harm() {
    with_blocks(10, async |engine, bench| {
        // What came by the replay socket only is not told twice.
        let repeated = |bench: &Bench| {
            engine.repeat(5);
            bench.count("duplicate_batches") >= 5
        };
        bench.until("repeated", repeated).await;
        engine.swap();
        engine.publish(1);
        bench.whole(1, 13).await;
        assert_eq!(bench.count("resets"), 0);
        bench.leaves_nothing(engine, 1, 13).await;
    });
}

#[test]
fn a_dead_replay_stops_nothing_and_heals_when_it_returns() {
    with_engine(10_000, async |engine| {
        engine.publish(20);
        engine.kill_replay();
        let bench = Bench::of(engine).await;
        bench.until("partial", |bench| bench.is_trusted() && bench.is_partial()).await;
        engine.publish(10);
        bench.until("live", |bench| bench.is_trusted() && bench.last_seq() == Some(29)).await;
        engine.lose(1);
        engine.publish(10);
        bench.until("live", |bench| bench.is_trusted() && bench.last_seq() == Some(40)).await;
        assert_eq!((bench.count("resets"), bench.depth(1, 41)), (1, 0));
        engine.revive_replay();
        bench.whole(1, 41).await;
        assert!(!bench.is_partial());
        bench.leaves_nothing(engine, 1, 41).await;
    });
}

#[test]
fn poison_costs_what_it_may_have_removed() {
    with_blocks(0, async |engine, bench| {
        engine.publish(10);
        bench.whole(1, 10).await;
        engine.poison();
        engine.malformed();
        engine.publish(10);
        bench.until("reset", |bench| bench.is_trusted() && bench.last_seq() == Some(20)).await;
        assert_eq!((bench.depth(1, 20), bench.is_partial()), (0, true));
        // The live socket may still have to take up its work.
        let noticed = |bench: &Bench| {
            engine.malformed();
            bench.count("malformed_messages") >= 1
        };
        bench.until("noticed", noticed).await;
        assert_eq!((bench.count("resets"), bench.count("lost_batches")), (1, 1));
        assert!(bench.count("undecodable_batches") >= 1);
        assert!(bench.stream.status.last_error().is_some());
        engine.restart();
        engine.publish(3);
        bench.whole(2, 3).await;
        assert!(!bench.is_partial());
    });
}
