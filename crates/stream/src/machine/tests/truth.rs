//! Tests of cases in which a stream with wrong held blocks could be trusted by mistake.

use super::{Bench, a, b, clearing, unreadable, with_unreadable_store};
use crate::State;

#[test]
fn an_unreadable_batch_is_asked_for() {
    let mut bench = Bench::at_nine();
    bench.lives([10], unreadable).did(&["ask 9"]).is(State::Gap).holds(0..10);
    bench.lives([11], a).holds(0..10).replies(9..11, a).is(State::Live).holds(0..12).partial(false).did(&[]);
}

#[test]
fn an_unreadable_batch_costs_the_holdings_if_the_engine_has_no_other() {
    let mut bench = Bench::at_nine();
    bench.lives([10], unreadable).replies([9], a).replies([10], unreadable).did(&["ask 9", "clear"]);
    bench.holds([]).partial(true).replies([11], a).end().is(State::Live).holds([11]).partial(true);
    assert_eq!((bench.machine.counts.lost_batches, bench.machine.counts.resets), (1, 1));
    // It will never have it.
    bench.log.did.clear();
    for seq in 12..60 {
        bench.lives([seq], a).pass(4.0);
    }
    bench.did(&[]).holds(11..60);
}

#[test]
fn an_unreadable_batch_that_is_not_answered_for_is_given_up() {
    let mut bench = Bench::at_nine();
    bench.lives([10], unreadable).pass(8.0).is(State::Live).holds([]).partial(true);
    bench.lives([11], a).is(State::Live).holds([11]);
    let mut bench = Bench::at_nine_without_replay();
    bench.lives([10], unreadable).did(&["clear"]).is(State::Live).partial(true).lives([11], a).holds([11]);
}

#[test]
fn a_store_that_cannot_be_read_is_partial_until_all_is_cleared() {
    let mut bench = Bench::at_nine();
    bench.lives([10], with_unreadable_store).is(State::Live).partial(true).holds(0..11);
    bench.lives([11], a).partial(true).lives([12], clearing).partial(false).is(State::Live).did(&[]);
}

#[test]
fn what_the_buffer_had_no_room_for_is_waited_for() {
    let mut bench = Bench::at_nine();
    bench.lives(11..30, a).is(State::Gap).did(&["ask 9"]);
    // The answer was given before the others were published.
    bench.replies(9..12, a).is(State::Gap).holds(0..19).end().is(State::Gap).did(&["ask 18"]);
    bench.replies(18..29, a).is(State::Gap).replies([29], a).is(State::Live).holds(0..30).partial(false);
}

#[test]
fn what_the_buffer_had_no_room_for_is_lost_in_the_end() {
    let mut bench = Bench::at_nine();
    bench.lives(11..30, a).replies(9..12, a).end().pass(9.0).is(State::Live).holds([]).partial(true);
    assert_eq!((bench.machine.counts.lost_batches, bench.machine.counts.resets), (11, 1));
    bench.lives([30], a).is(State::Live).holds([30]);
    let mut bench = Bench::at_nine_without_replay();
    bench.lives(11..30, a).is(State::Gap).pass(0.11).is(State::Gap).pass(0.11).is(State::Live).holds([]).partial(true);
}

#[test]
fn a_busy_stream_is_verified_within_seconds() {
    let mut bench = Bench::at_nine();
    // Nobody answers, and the number is right.
    bench.disconnected().connected().pass(8.0).lives([10], b).is(State::Live).holds(0..11);
    bench.log.did.clear();
    for seq in 11..20 {
        bench.lives([seq], b).pass(1.0);
    }
    // From the batch before the connection.
    assert!(bench.log.did.contains(&"ask 9".to_owned()), "{:?}", bench.log.did);
    for seq in 20.. {
        if bench.machine.ask.is_some() {
            break;
        }
        assert!(seq < 70, "not asked although it is busy");
        bench.lives([seq], b).pass(0.1);
    }
    bench.replies([9], b).holds([]);
    assert_eq!(bench.machine.counts.epochs, 1);
}

#[test]
fn a_busy_stream_finds_out_that_its_replay_answers_again() {
    let mut bench = Bench::at_nine();
    bench.lives([11], a).pass(8.0).is(State::Live).holds([11]);
    for seq in 12..20 {
        bench.lives([seq], a).pass(1.0);
        if bench.machine.ask.is_some() {
            let last = bench.machine.last().expect("applied");
            bench.replies([last], a).end();
        }
    }
    bench.log.did.clear();
    bench.lives([21], a).did(&["ask 19"]).replies(19..22, a).is(State::Live).holds(11..22);
}

#[test]
fn the_replay_socket_must_be_the_live_ones() {
    let mut bench = Bench::new(true);
    bench.connected().replies(0..5, a).end().lives([5], b).is(State::Live).pass(0.6).did(&["ask 0", "ask 5"]);
    bench.replies([5], a).did(&["clear", "cancel", "reconnect"]);
}

#[test]
fn what_trickles_in_is_not_waited_for_without_end() {
    let mut bench = Bench::new(true);
    bench.connected().lives([500], a);
    for seq in 0..400 {
        bench.replies([seq], a).pass(1.0);
        if bench.machine.trusted() {
            break;
        }
    }
    bench.is(State::Live).holds([500]).partial(true);
    let mut bench = Bench::at_nine();
    bench.lives([500], a).replies([9], a);
    for seq in 10..310 {
        bench.is(State::Gap).replies([seq], a).pass(1.0);
    }
    bench.is(State::Live).holds([500]).partial(true);
}

#[test]
fn losses_are_counted() {
    let counts = |bench: &Bench| (bench.machine.counts.lost_batches, bench.machine.counts.gaps);
    let mut bench = Bench::new(true);
    bench.connected().replies(50..53, a).end();
    assert_eq!(counts(&bench), (50, 1));
    let mut bench = Bench::new(true);
    bench.connected().replies([0, 1, 4], a).end();
    assert_eq!(counts(&bench), (0, 1));
    bench.pass(0.3).replies([1, 2, 3], a).is(State::Live);
    assert_eq!(counts(&bench), (0, 1));
    let mut bench = Bench::at_nine_without_replay();
    bench.lives([4], b);
    assert_eq!((counts(&bench), bench.machine.counts.epochs), ((4, 1), 1));
    let mut bench = Bench::new(false);
    bench.connected().lives([7], a);
    assert_eq!(counts(&bench), (7, 1));
}

#[test]
fn one_contradiction_is_doubted_for_a_moment() {
    let mut bench = Bench::at_nine_without_replay();
    bench.lives([0], b).is(State::Conflict).holds([0]).lives([1, 2], b).is(State::Conflict);
    bench.pass(5.1).is(State::Live).holds([0, 1, 2]).partial(false);
    let mut bench = Bench::at_nine_without_replay();
    bench.lives([0], b).is(State::Conflict).disconnected().connected().lives([1], b).is(State::Live);
}

#[test]
fn two_publishers_are_not_trusted() {
    for replay in [true, false] {
        let mut bench = if replay { Bench::at_nine() } else { Bench::at_nine_without_replay() };
        bench.lives([10], a).lives([10], b);
        for seq in 11..200 {
            bench.connected();
            if bench.machine.ask.is_some() {
                bench.replies(0..seq, a).end();
            }
            assert!(!bench.machine.trusted(), "{seq}");
            bench.lives([seq], a).pass(0.1);
            assert!(!bench.machine.trusted(), "{seq}");
            bench.lives([seq], b).pass(0.1);
        }
        assert!(bench.machine.is_mixed());
        // One of them goes away, and after a while it is good.
        for seq in 200..1000 {
            bench.connected();
            if bench.machine.ask.is_some() {
                bench.replies(0..seq, a).end();
            }
            bench.lives([seq], a).pass(1.0);
        }
        bench.is(State::Live);
        assert!(!bench.machine.is_mixed());
    }
}

#[test]
fn a_second_publisher_far_behind_is_noticed() {
    let mut bench = Bench::at_nine();
    bench.lives(10..600, a);
    for seq in 20..26 {
        bench.lives([seq], b).did(&["ask 599"]).replies([599], a).end();
        assert!(!bench.machine.trusted());
    }
    bench.holds(0..600).is(State::Conflict);
    assert!(bench.machine.is_mixed());
}

#[test]
fn the_first_batch_of_a_connection_is_looked_for_in_an_answer_soon() {
    let mut bench = Bench::new(true);
    bench.connected().replies(0..5, a).end().pass(0.6).replies([4], a).end().is(State::Live);
    bench.log.did.clear();
    bench.lives([5], b);
    for seq in 6..16 {
        bench.pass(0.1).lives([seq], b);
    }
    assert!(bench.machine.is_unproven() && !bench.log.did.is_empty(), "it is busy, and of nobody knows which life");
}

#[test]
fn an_answer_older_than_what_was_lost_is_not_all() {
    let mut bench = Bench::at_nine();
    bench.disconnected().connected().pass(8.0).lives([10, 11], b).is(State::Live);
    while bench.machine.ask.is_none() {
        bench.pass(0.1);
    }
    bench.lives([12], b);
    bench.log.did.clear();
    // Nothing shows any more that the engine is the same; and this answer was given before the last batch.
    bench.replies([11], b).holds([11]).end().is(State::Gap).did(&["clear", "ask 11"]);
    bench.replies([11, 12], b).is(State::Live).holds([11, 12]).partial(true);
}

fn strange(seq: u64) -> Vec<u8> {
    format!("s{seq}").into_bytes()
}

#[test]
fn an_unknown_event_costs_what_was_held_and_nobody_is_asked() {
    let mut bench = Bench::at_nine();
    bench.lives([10], strange).did(&["clear"]).is(State::Live).holds([]).partial(true);
    bench.lives([11], a).is(State::Live).holds([11]).partial(true);
    // Long after it, another one.
    for seq in 12..20 {
        bench.pass(601.0).lives([seq], a);
    }
    assert!(bench.machine.trusted());
    assert_eq!(bench.machine.counts.resets, 1);
}

#[test]
fn unknown_events_without_end_are_not_forgotten_for_without_end() {
    let mut bench = Bench::at_nine_without_replay();
    for seq in 10..13 {
        bench.lives([seq], strange).is(State::Live).holds([]);
    }
    bench.lives([13], a).is(State::Live).lives([14], strange).is(State::Unreadable).partial(true);
    for seq in 15..200 {
        bench.lives([seq], strange).pass(10.0).is(State::Unreadable);
    }
    bench.holds(13..200).did(&["clear"; 3]);
    assert_eq!(bench.machine.counts.resets, 3);
    // None for long: once more, and all is well.
    bench.lives([200], a).pass(580.0).is(State::Unreadable).pass(30.0).is(State::Live).holds([]).did(&["clear"]);
    bench.lives([201], a).is(State::Live).holds([201]).partial(true);
}

#[test]
fn a_clear_or_a_restart_ends_what_unknown_events_left_open() {
    let mut bench = Bench::at_nine_without_replay();
    bench.lives(10..15, strange).is(State::Unreadable).lives([15], clearing).is(State::Live).partial(false);
    bench.lives([16], strange).is(State::Unreadable);
    bench.disconnected().connected().lives([0], b).is(State::Live).holds([0]).partial(false);
}

/// Creates a machine whose engine was busy and has stopped sending, and which has therefore requested a replay.
fn silent() -> Bench {
    let mut bench = Bench::at_nine();
    for seq in 10..40 {
        bench.pass(0.1).lives([seq], a);
    }
    bench.pass(0.9).did(&[]).pass(0.2).did(&["ask 39"]);
    bench
}

#[test]
fn a_busy_engine_that_stops_without_an_answer_is_not_trusted() {
    let mut bench = silent();
    bench.is(State::Live).pass(1.8).is(State::Live).pass(0.2).is(State::Stale).holds(0..40);
    // An answer or a batch is enough.
    bench.pass(1.0).replies([39], a).end().is(State::Live).holds(0..40);
    let mut bench = silent();
    bench.pass(2.1).is(State::Stale).lives([40], a).is(State::Live).holds(0..41);
    assert_eq!((bench.machine.counts.epochs, bench.machine.counts.resets), (0, 0));
}

#[test]
fn a_busy_engine_that_has_nothing_more_to_do_is_trusted() {
    let mut bench = silent();
    bench.replies([39], a).end().pass(2.0).is(State::Live).pass(1.9).did(&["cancel"; 0]);
    bench.pass(1.2).did(&["ask 39"]);
}

#[test]
fn silence_says_nothing_of_who_is_not_busy_or_never_answers() {
    let mut bench = Bench::at_nine();
    for seq in 10..40 {
        bench.pass(1.5).lives([seq], a);
    }
    bench.pass(9.0).is(State::Live);
    let mut bench = Bench::new(true);
    bench.connected();
    for seq in 0..300 {
        bench.lives([seq], a).pass(0.1);
    }
    bench.is(State::Live).pass(9.0).is(State::Live);
}

#[test]
fn what_a_number_alone_says_is_said_to_be_unverified() {
    let mut bench = Bench::at_nine_without_replay();
    assert!(!bench.machine.unverified());
    bench.disconnected().connected().lives([10], b).is(State::Live).holds(0..11);
    assert!(bench.machine.unverified());
    bench.lives([11], clearing);
    assert!(!bench.machine.unverified(), "nothing is left of before");
    let mut bench = Bench::at_nine_without_replay();
    bench.disconnected().connected().lives([12], a).is(State::Live).holds([12]);
    assert!(!bench.machine.unverified(), "nothing is left of before");
    let mut bench = Bench::at_nine();
    bench.disconnected().connected().pass(8.0).lives([10], a).is(State::Live);
    assert!(bench.machine.unverified());
    while bench.machine.ask.is_none() {
        bench.pass(0.1);
    }
    bench.replies([9, 10], a).end();
    assert!(!bench.machine.unverified() && bench.machine.trusted());
}

#[test]
fn what_a_former_life_published_is_not_waited_for() {
    let mut bench = Bench::at_nine();
    // Nobody has said yet that it is the same engine, and so it comes to be asked from 9 on again.
    bench.disconnected().connected().pass(8.0).lives(10..76, a).is(State::Live);
    bench.disconnected().connected();
    // It is another one. Its buffer begins behind what would show that, and it has not come as far.
    bench.replies(49..67, b).holds(49..67);
    bench.end();
    for _ in 0..100 {
        bench.connected();
        if let Some(from) = bench.machine.ask.as_ref().map(|ask| ask.from) {
            bench.replies(from.max(49)..67, b).end();
        }
        bench.pass(0.1);
    }
    bench.is(State::Live).holds(49..67).partial(true).lives([67], b).is(State::Live).holds(49..68);
    assert_eq!(bench.machine.counts.epochs, 1);
}
