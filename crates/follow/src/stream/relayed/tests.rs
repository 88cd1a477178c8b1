//! Tests of the rules for a relay's messages: in order, out of order, and from two relays.

use std::time::Duration;

use bytes::Bytes;
use kvatlas_wire::compact::{FormatError, Frame, MessageWriter, Status};

use super::rules::{LogEffects, LogRules};
use crate::stream::copier::Moment as _;
use kvatlas_stream::Mark;

const SILENCE: Duration = Duration::from_secs(7);

/// Stand-in for held blocks: the changes applied to each rank, in order, as letters, with `C` and a number for a clear.
#[derive(Default)]
struct Model {
    applied: Vec<(u32, u8)>,
    asked: u32,
}

impl LogEffects for Model {
    fn apply(&mut self, _id: u64, rank: u32, changes: &[u8]) -> Result<(), FormatError> {
        self.applied.push((rank, changes[1]));
        Ok(())
    }
    fn clear(&mut self) {
        self.applied.clear();
    }
    fn ask(&mut self) {
        self.asked += 1;
    }
    fn timestamp(&mut self, _timestamp: f64) {}
}

struct Test {
    rules: LogRules,
    held: Model,
    now: Duration,
}

impl Test {
    fn new() -> Self {
        Self { rules: LogRules::new(16, 0, SILENCE), held: Model::default(), now: Duration::from_secs(1) }
    }

    /// Passes a message with these frames to the rules under test, as just published. The message ends with a status
    /// that trusts the engine.
    fn message(&mut self, life: u64, id: u64, frames: &[Frame<'_>]) {
        self.message_of(Some(self.now), life, id, frames);
    }

    /// Passes a message with these frames to the rules. The message ends with a status that trusts the engine. `heard`
    /// is the time at which the message was published; `None` for long ago.
    fn message_of(&mut self, heard: Option<Duration>, life: u64, id: u64, frames: &[Frame<'_>]) {
        let mut bytes = MessageWriter { life, block_size: 16, key: 0 }.begin(id, 1.0, 0);
        frames.iter().for_each(|frame| MessageWriter::put(&mut bytes, *frame));
        MessageWriter::put(&mut bytes, Frame::Status(Status { trusted: true, ..Status::default() }));
        self.rules.message(self.now, heard, &Bytes::from(bytes), id + 100, &mut self.held);
    }

    /// Passes a message without frames to the rules under test, as any NATS client may publish one.
    fn made_up(&mut self, head: MessageWriter) {
        let bytes = Bytes::from(head.begin(1, 0.0, 0));
        self.rules.message(self.now, Some(self.now), &bytes, 100, &mut self.held);
    }

    fn pass(&mut self, seconds: f64) {
        self.now += Duration::from_secs_f64(seconds);
        self.rules.tick(self.now, &mut self.held);
    }

    fn trusted(&self) -> bool {
        self.rules.trusted(self.now)
    }
}

fn batch(changes: &[u8]) -> Frame<'_> {
    Frame::Batch { rank: 0, changes }
}

const STATE: [Frame<'static>; 4] =
    [Frame::StateBegin, Frame::State { rank: 0, changes: b"Cs" }, Frame::StateRankEnd { rank: 0 }, Frame::StateEnd];

#[test]
fn a_life_is_followed_from_its_beginning() {
    let mut test = Test::new();
    test.message(5, 0, &[Frame::Forgotten, batch(b"Ca")]);
    assert!(test.trusted());
    test.message(5, 1, &[batch(b"Cb")]);
    test.message(5, 1, &[batch(b"Cb")]);
    assert_eq!((test.held.applied.len(), test.held.asked, test.rules.counts.duplicates), (2, 0, 1));
    // What it knows already it is not told again.
    test.message(5, 2, &STATE);
    assert_eq!(test.held.applied, [(0, b'a'), (0, b'b')]);
    assert_eq!((test.rules.mark().ok(), test.rules.sequence()), (Some(Mark { seq: 2, hash: 5 }), Some(102)));
    test.pass(7.0);
    assert!(!test.trusted(), "the relay is silent");
    test.message(5, 3, &[]);
    assert!(test.trusted());
}

#[test]
fn who_comes_late_asks_and_leaves_out_what_is_in_the_copy() {
    let mut test = Test::new();
    test.message(5, 70, &[batch(b"Cx")]);
    assert_eq!((test.trusted(), test.held.applied.len(), test.held.asked), (false, 0, 1));
    test.pass(2.0);
    assert_eq!(test.held.asked, 2, "nobody has answered");
    test.message(5, 71, &[batch(b"Cy"), Frame::StateBegin, Frame::State { rank: 0, changes: b"Cs" }, batch(b"Cz")]);
    let other = Frame::Batch { rank: 1, changes: b"Co" };
    test.message(5, 72, &[Frame::StateRankEnd { rank: 0 }, batch(b"Ca"), other]);
    assert!(!test.trusted());
    test.message(5, 73, &[Frame::State { rank: 1, changes: b"Ct" }, Frame::StateRankEnd { rank: 1 }, other]);
    test.message(5, 74, &[Frame::StateEnd]);
    assert!(test.trusted());
    assert_eq!(test.held.applied, [(0, b's'), (0, b'a'), (1, b't'), (1, b'o')]);
}

#[test]
fn a_copy_that_begins_anew_takes_the_place_of_the_first() {
    let mut test = Test::new();
    test.message(5, 9, &[Frame::StateBegin, Frame::State { rank: 0, changes: b"Cs" }]);
    test.message(5, 10, &[Frame::Forgotten, batch(b"Ca")]);
    assert!(test.trusted(), "there is nothing else to know");
    test.message(5, 11, &STATE);
    assert_eq!(test.held.applied, [(0, b'a')]);
}

#[test]
fn a_message_that_is_late_is_waited_for() {
    let mut test = Test::new();
    test.message(5, 0, &[Frame::Forgotten]);
    test.message(5, 2, &[batch(b"Cb")]);
    assert_eq!((test.trusted(), test.held.applied.len()), (false, 0));
    test.message(5, 1, &[batch(b"Ca")]);
    assert!(test.trusted());
    assert_eq!(test.held.applied, [(0, b'a'), (0, b'b')]);
    assert_eq!((test.rules.counts.gaps, test.rules.counts.lost, test.held.asked), (1, 0, 0));
}

#[test]
fn a_message_that_is_lost_costs_all_until_it_is_told_anew() {
    let mut test = Test::new();
    test.message(5, 0, &[Frame::Forgotten, batch(b"Ca")]);
    test.message(5, 2, &[batch(b"Cc")]);
    test.pass(3.0);
    assert_eq!((test.trusted(), test.held.applied.len(), test.held.asked), (false, 0, 1));
    let counts = test.rules.counts;
    assert_eq!((counts.gaps, counts.lost, counts.resets), (1, 1, 1));
    // One that came too late after all.
    test.message(5, 1, &[batch(b"Cb")]);
    test.message(5, 3, &STATE);
    assert!(test.trusted());
    assert_eq!(test.held.applied, [(0, b's')]);
    assert!(test.rules.error.take().is_none(), "it is over");
}

#[test]
fn of_two_relays_the_later_one_counts() {
    let mut test = Test::new();
    test.message(5, 0, &[Frame::Forgotten, batch(b"Ca")]);
    test.message(6, 0, &[Frame::Forgotten, batch(b"Cb")]);
    test.message(5, 1, &[batch(b"Cx")]);
    test.message(6, 1, &[batch(b"Cc")]);
    assert!(test.trusted());
    assert_eq!(test.held.applied, [(0, b'b'), (0, b'c')]);
    assert_eq!((test.rules.counts.other_relays, test.rules.counts.epochs), (1, 1));
    assert!(test.rules.error.take().is_some_and(|error| error.contains("another relay")));
    // It has left: then the other one is as good as any, once it has told what it holds.
    test.pass(8.0);
    test.message(5, 2, &[batch(b"Cy")]);
    assert_eq!((test.trusted(), test.held.asked), (false, 1));
    test.message(5, 3, &STATE);
    assert!(test.trusted());
}

#[test]
fn a_snapshot_is_proved_by_the_life_and_the_number() {
    let restored = || {
        let mut test = Test::new();
        test.rules.restore(Mark { seq: 41, hash: 5 }, 0, Some(141));
        test.held.applied.push((0, b'r'));
        assert!(!test.trusted(), "nobody was heard");
        test
    };
    let mut next = restored();
    next.message(5, 42, &[batch(b"Ca")]);
    assert!(next.trusted());
    assert_eq!(next.held.applied, [(0, b'r'), (0, b'a')]);
    let mut again = restored();
    again.message(5, 41, &[batch(b"Cr")]);
    assert!(again.rules.is_whole() && !again.trusted(), "what the relay says of it now comes with the next");
    again.message(5, 42, &[]);
    assert!(again.trusted());
    assert_eq!(again.held.applied, [(0, b'r')]);
    let mut purged = restored();
    purged.message(5, 45, &[batch(b"Cx")]);
    purged.pass(3.0);
    assert_eq!((purged.trusted(), purged.held.applied.len(), purged.held.asked), (false, 0, 1));
    let mut other = restored();
    other.message(6, 42, &[batch(b"Cx")]);
    assert_eq!((other.trusted(), other.held.applied.len(), other.held.asked), (false, 0, 1));
}

#[test]
fn messages_of_long_ago_are_no_sign_of_life() {
    let mut test = Test::new();
    test.message_of(None, 5, 0, &[Frame::Forgotten, batch(b"Ca")]);
    assert_eq!((test.trusted(), test.held.applied.len()), (false, 1), "its relay may have ended since");
    test.message_of(None, 5, 1, &[batch(b"Cb")]);
    assert!(!test.trusted());
    test.message(5, 2, &[]);
    assert!(test.trusted());
    test.pass(6.9);
    test.message_of(None, 5, 3, &[batch(b"Cc")]);
    test.pass(0.1);
    assert!(!test.trusted());
}

#[test]
fn what_cannot_be_read_changes_nothing() {
    let mut test = Test::new();
    test.message(5, 0, &[Frame::Forgotten, batch(b"Ca")]);
    let (now, held) = (test.now, &mut test.held);
    test.rules.message(now, Some(now), &Bytes::from_static(b"\xc1\x02"), 101, held);
    test.made_up(MessageWriter { life: 5, block_size: 16, key: 9 });
    assert!(test.rules.error.take().is_some_and(|error| error.contains("relay.key_file")));
    test.made_up(MessageWriter { life: 4, block_size: 32, key: 9 });
    assert!(test.rules.error.take().is_some_and(|error| error.contains("another relay")));
    assert_eq!((test.trusted(), test.held.applied.len(), test.rules.counts.malformed), (true, 1, 2));
    // If it was the relay's, the number is missing.
    test.message(5, 2, &[]);
    assert!(!test.trusted());
    test.pass(3.0);
    assert_eq!((test.held.applied.len(), test.held.asked), (0, 1));
}

#[test]
fn a_life_with_another_block_size_is_for_another_stream() {
    let mut test = Test::new();
    test.message(5, 0, &[Frame::Forgotten, batch(b"Ca")]);
    test.made_up(MessageWriter { life: 6, block_size: 32, key: 0 });
    assert!(test.rules.error.take().is_some_and(|error| error.contains("32 tokens, and not 16")));
    assert_eq!((test.trusted(), test.rules.is_gone()), (false, true), "it is to be registered anew");
}

#[test]
fn changes_that_cannot_be_read_cost_all() {
    let mut test = Test::new();
    test.message(5, 0, &[Frame::Forgotten, batch(b"Ca")]);
    let mut bytes = MessageWriter { life: 5, block_size: 16, key: 0 }.begin(1, 0.0, 0);
    bytes.push(99);
    test.rules.message(test.now, Some(test.now), &bytes.into(), 101, &mut test.held);
    assert_eq!((test.trusted(), test.held.applied.len(), test.held.asked), (false, 0, 1));
}

#[test]
fn a_message_of_too_many_blocks_costs_all_before_any_is_named() {
    let mut test = Test::new();
    test.message(5, 0, &[Frame::Forgotten, batch(b"Ca")]);
    // A removal of 2^24 blocks from number 0 on, in eleven bytes.
    let run = b"\x02\x80\x80\x80\x08\x01\xfc\xff\xff\x0f";
    test.message(5, 1, &[batch(run)]);
    assert_eq!((test.trusted(), test.held.applied.len(), test.held.asked), (false, 0, 1));
    assert!(test.rules.error.take().is_some_and(|error| error.contains("more blocks")));
    assert_eq!(test.rules.counts.malformed, 1);
}
