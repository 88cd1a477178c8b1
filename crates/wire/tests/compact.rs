//! Messages of a relay, read by another index, make it answer as the relay's does.

use std::sync::Arc;

use kvatlas_index::{BlockHash, BlockIndex, Config, CopyState, RankCopier, View};
use kvatlas_testing::{Random, mix, seeds};
use kvatlas_wire::compact::{
    Change, Changes, FormatError, Frame, MOST_BLOCKS, Message, MessageWriter, Status, name_of, weight,
};
use kvatlas_wire::encode::{Dialect, encode};
use kvatlas_wire::{Batch, Event, Name, Reader, Removed, Stored, Tally, decode};

const SIZE: u32 = 4;

fn tokens(chain: u64, block: u64) -> Vec<u32> {
    // Chains share their beginnings.
    let branch = if block < 4 { chain % 3 } else { chain };
    (0..u64::from(SIZE)).map(|at| mix(branch * 1_000_003 + block * 101 + at) as u32 % 120_000).collect()
}

/// As an engine computes it, of the whole prefix.
fn name(chain: u64, block: u64) -> u64 {
    let branch = if block < 4 { chain % 3 } else { chain };
    mix(branch * 7919 + block + 1)
}

fn stored(chain: u64, from: u64, to: u64, medium: &'static str) -> Event {
    let stored = Stored {
        block_hashes: (from..to).map(|block| Name::from(name(chain, block))).collect(),
        parent: from.checked_sub(1).map(|block| Name::from(name(chain, block))),
        tokens: (from..to).flat_map(|block| tokens(chain, block)).collect(),
        block_size: SIZE,
        medium: Some(medium.into()),
        ..Stored::default()
    };
    Event::Stored(stored.into())
}

fn by_name(chain: u64, from: u64, to: u64) -> Event {
    let block_hashes = (from..to).map(|block| Name::from(name(chain, block))).collect();
    let stored = Stored { block_hashes, medium: Some("CPU".into()), ..Stored::default() };
    Event::Stored(stored.into())
}

fn removed(names: Vec<u64>, medium: &'static str) -> Event {
    let block_hashes = names.into_iter().map(Name::from).collect();
    Event::Removed(Removed { block_hashes, medium: Some(medium.into()), ..Removed::default() })
}

fn event(random: &mut Random) -> Event {
    let chain = random.below(9);
    let from = random.below(12);
    let to = from + 1 + random.below(6);
    let medium = *random.pick(&["GPU", "GPU", "GPU", "CPU"]);
    match random.below(100) {
        0 => Event::Cleared(kvatlas_wire::Cleared),
        1..55 => stored(chain, if random.chance(60) { 0 } else { from }, to, medium),
        55..60 => by_name(chain, from, to),
        _ => removed((from..to).rev().map(|block| name(chain, block)).collect(), medium),
    }
}

fn apply(index: &BlockIndex, changes: &[u8]) -> Result<(), FormatError> {
    let into = &mut index.changes();
    Changes::default().read(changes, |change: Change<'_>| {
        change.apply(into, &("w", 0)).expect("there is room");
        Ok(())
    })
}

fn index() -> Arc<BlockIndex> {
    Arc::new(BlockIndex::new(Config { block_size: SIZE, ..Config::default() }).expect("a size"))
}

fn answers(index: &BlockIndex) -> Vec<[u32; 2]> {
    let depth = |chain| {
        let prompt: Vec<u32> = (0..20).flat_map(|block| tokens(chain, block)).collect();
        let found = kvatlas_index::hash::content_hashes(&prompt, SIZE as usize, None, None);
        let found = index.find(&found);
        [found.depth(View::Device), found.depth(View::AnyTier)]
    };
    (0..9).map(depth).collect()
}

fn copy(index: &Arc<BlockIndex>) -> kvatlas_index::RankCopy {
    let mut copier = RankCopier::new(index.clone(), "w", 0);
    loop {
        match copier.step(64) {
            CopyState::More(more) => copier = more,
            CopyState::Done(done) => return done.sorted(),
        }
    }
}

#[test]
fn whoever_reads_the_record_answers_the_same() {
    for seed in 0..seeds(40) {
        let random = &mut Random(seed + 1);
        let count_copies = seed % 3 != 0;
        let (ours, theirs, mut late) = (index(), index(), None);
        let mut reader = Reader::new(SIZE).counting(count_copies).recording();
        for step in 0..400 {
            let batch = Batch { events: (0..=random.below(3)).map(|_| event(random)).collect(), ..Batch::default() };
            reader.apply(&batch, &ours, "w", 0, &mut Tally::default());
            let changes = reader.recorder().expect("it records").take();
            apply(&theirs, &changes).expect("well formed");
            assert_eq!(answers(&theirs), answers(&ours), "seed {seed}, step {step}");
            match &late {
                None if step > 100 && random.chance(2) => {
                    let new = index();
                    let recorder = reader.recorder().expect("it records");
                    recorder.state(&copy(&ours), 200, |piece| apply(&new, &piece).expect("well formed"));
                    assert_eq!(answers(&new), answers(&ours), "a state, seed {seed}, step {step}");
                    late = Some(new);
                }
                None => {}
                Some(late) => {
                    apply(late, &changes).expect("well formed");
                    assert_eq!(answers(late), answers(&ours), "from a state, seed {seed}, step {step}");
                }
            }
        }
    }
}

/// A block that was removed has the number that it had when it comes back.
#[test]
fn a_hole_that_is_filled_again_joins_what_is_below_it() {
    let (ours, theirs) = (index(), index());
    let mut reader = Reader::new(SIZE).recording();
    let mut apply_all = |events: Vec<Event>| {
        reader.apply(&Batch { events, ..Batch::default() }, &ours, "w", 0, &mut Tally::default());
        apply(&theirs, &reader.recorder().expect("it records").take()).expect("well formed");
        answers(&theirs)[0][0]
    };
    assert_eq!(apply_all(vec![stored(0, 0, 8, "GPU")]), 8);
    assert_eq!(apply_all(vec![removed(vec![name(0, 3)], "GPU")]), 3);
    assert_eq!(apply_all(vec![stored(0, 3, 4, "GPU")]), 8);
}

/// Readers of a record, and of a state, count chunks as long as they are.
#[test]
fn lengths_of_chunks_are_told() {
    let (ours, theirs, late) = (index(), index(), index());
    let mut reader = Reader::new(SIZE).recording();
    let events = vec![stored(0, 0, 8, "GPU"), stored(0, 0, 4, "CPU"), stored(0, 4, 8, "CPU")];
    reader.apply(&Batch { events, ..Batch::default() }, &ours, "w", 0, &mut Tally::default());
    let recorder = reader.recorder().expect("it records");
    apply(&theirs, &recorder.take()).expect("well formed");
    recorder.state(&copy(&ours), 200, |piece| apply(&late, &piece).expect("well formed"));
    let events = vec![removed(vec![name(0, 7)], "CPU")];
    reader.apply(&Batch { events, ..Batch::default() }, &ours, "w", 0, &mut Tally::default());
    let changes = reader.recorder().expect("it records").take();
    let prompt: Vec<u32> = (0..8).flat_map(|block| tokens(0, block)).collect();
    let contents = kvatlas_index::hash::content_hashes(&prompt, SIZE as usize, None, None);
    for index in [&theirs, &late] {
        apply(index, &changes).expect("well formed");
        assert_eq!(index.find_loadable(&contents)[0].host, 4, "of the second chunk, three blocks of four are there");
    }
    for wrong in [&[0x80, 4][..], &[0x84, 0]] {
        assert!(weight(wrong).is_err() && apply(&late, wrong).is_err(), "of the device, or of no blocks");
    }
}

/// Readers of a record, and of a state, load chunks that a connector names itself only from the prompt's beginning on.
#[test]
fn chunks_with_names_of_their_own_are_told() {
    let (ours, theirs, late) = (index(), index(), index());
    let mut reader = Reader::new(SIZE).recording();
    let chunk = |number: u64| {
        let stored = Stored {
            block_hashes: vec![Name::from(900 + number)],
            parent: number.checked_sub(1).map(|before| Name::from(900 + before)),
            tokens: (4 * number..4 * number + 4).flat_map(|block| tokens(0, block)).collect(),
            block_size: 4 * SIZE,
            medium: Some("CPU".into()),
            ..Stored::default()
        };
        Event::Stored(stored.into())
    };
    let mut tally = Tally::default();
    let events = vec![stored(0, 0, 8, "GPU"), chunk(0), chunk(1), chunk(1), removed(vec![name(0, 7)], "GPU")];
    reader.apply(&Batch { events, ..Batch::default() }, &ours, "w", 0, &mut tally);
    assert_eq!((tally.offloaded_blocks, tally.refused_total()), ([12, 0, 0], 0));
    let recorder = reader.recorder().expect("it records");
    apply(&theirs, &recorder.take()).expect("well formed");
    recorder.state(&copy(&ours), 200, |piece| apply(&late, &piece).expect("well formed"));
    let prompt: Vec<u32> = (0..8).flat_map(|block| tokens(0, block)).collect();
    let contents = kvatlas_index::hash::content_hashes(&prompt, SIZE as usize, None, None);
    for (gone, end) in [(None, 8), (Some(900), 7), (Some(901), 7)] {
        let events = gone.map(|name| removed(vec![name], "CPU")).into_iter().collect();
        reader.apply(&Batch { events, ..Batch::default() }, &ours, "w", 0, &mut Tally::default());
        let changes = reader.recorder().expect("it records").take();
        for index in [&theirs, &late] {
            apply(index, &changes).expect("well formed");
        }
        for index in [&ours, &theirs, &late] {
            let found = &index.find_loadable(&contents)[0];
            assert_eq!((found.device, found.host, found.depth(), found.used), (7, 0, end, end), "{gone:?}");
        }
    }
    assert_eq!(ours.ranks()[0].device_blocks, 7);
}

/// Blocks of 16 tokens from a vocabulary of 128,000, each removed at the end, as the engines write them.
#[test]
fn it_is_more_than_six_times_smaller() {
    let mut reader = Reader::new(16).recording();
    let index = Arc::new(BlockIndex::new(Config { block_size: 16, ..Config::default() }).expect("a size"));
    let random = &mut Random(5);
    let (mut plain, mut small) = (0, 0);
    let mut publish = |events: Vec<Event>| {
        let batch = Batch { events, timestamp: 1.5e9, rank: Some(0), ..Batch::default() };
        let payload = encode(&batch, Dialect::Vllm);
        reader.apply(&decode(&payload).expect("a batch"), &index, "w", 0, &mut Tally::default());
        let changes = reader.recorder().expect("it records").take();
        let mut message = MessageWriter { life: u64::MAX, block_size: 16, key: 0 }.begin(100_000, 1.5e9, 0);
        MessageWriter::put(&mut message, Frame::Batch { rank: 0, changes: &changes });
        (plain, small) = (plain + payload.len(), small + message.len());
    };
    let mut held: Vec<Vec<Name>> = Vec::new();
    for _ in 0..300 {
        let blocks = 1 + random.below(60);
        let names: Vec<Name> = (0..blocks).map(|_| Name::from(random.next())).collect();
        let tokens = (0..16 * blocks).map(|_| random.below(128_000) as u32).collect();
        let stored = Stored { block_hashes: names.clone(), tokens, block_size: 16, ..Stored::default() };
        held.push(names);
        let mut events = vec![Event::Stored(stored.into())];
        if held.len() > 50 {
            let block_hashes = held.remove(random.index(held.len())).into_iter().rev().collect();
            events.insert(0, Event::Removed(Removed { block_hashes, ..Removed::default() }));
        }
        publish(events);
    }
    assert!(plain > 6 * small, "{plain} bytes became {small}");
}

fn example() -> Vec<u8> {
    let writer = MessageWriter { life: 1 << 60, block_size: 16, key: 7 };
    let mut bytes = writer.begin(300, 1.5, 0);
    let status = Status { trusted: true, no_salts: true, ..Status::default() };
    for frame in [
        Frame::StateBegin,
        Frame::State { rank: 3, changes: &[0x13, 0x03] },
        Frame::StateRankEnd { rank: 3 },
        Frame::StateEnd,
        Frame::Status(status),
        Frame::Batch { rank: 200, changes: b"" },
        Frame::Forgotten,
        Frame::Gone,
    ] {
        MessageWriter::put(&mut bytes, frame);
    }
    bytes
}

#[test]
fn a_message_comes_out_as_it_went_in() {
    let bytes = example();
    // `tests/unit/cli/test_relayed.py` reads the same.
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "c1010000000000000010ac021007000000000000f83f030403021303050306070901c801000208");
    let message = Message::read(&bytes).expect("a message");
    assert_eq!((message.life, message.id, message.block_size, message.key), (1 << 60, 300, 16, 7));
    assert!((message.timestamp - 1.5).abs() < 1e-9);
    let frames: Vec<_> = message.frames().map(|frame| frame.expect("well formed")).collect();
    assert_eq!(frames.len(), 8);
    assert_eq!(frames[1], Frame::State { rank: 3, changes: &[0x13, 0x03] });
    assert_eq!(frames[4], Frame::Status(Status { trusted: true, no_salts: true, ..Status::default() }));
    assert_eq!(frames[5], Frame::Batch { rank: 200, changes: b"" });
    let mut later = bytes.clone();
    later[1] = 2;
    assert!(Message::read(&later).expect_err("later").to_string().contains("another version"));
    assert!(Message::read(b"\x93\x01\x90\xc0").expect_err("MessagePack").to_string().contains("0xc1"));
}

#[test]
fn a_number_that_none_can_follow_is_refused() {
    let of = |id| MessageWriter { life: 1, block_size: 16, key: 0 }.begin(id, 0.0, 0);
    assert_eq!(Message::read(&of(u64::MAX - 1)).map(|message| message.id), Ok(u64::MAX - 1));
    assert!(Message::read(&of(u64::MAX)).is_err());
}

#[test]
fn nothing_that_is_damaged_does_harm() {
    let random = &mut Random(3);
    let mut reader = Reader::new(SIZE).recording();
    let ours = index();
    let events = (0..40).map(|_| event(random)).collect();
    reader.apply(&Batch { events, ..Batch::default() }, &ours, "w", 0, &mut Tally::default());
    let changes = reader.recorder().expect("it records").take();
    for whole in [changes, example()] {
        for _ in 0..4000 {
            let mut bytes = whole.clone();
            let at = random.index(bytes.len());
            bytes[at] ^= 1 << random.below(8);
            bytes.truncate(1 + random.index(bytes.len()));
            let mut blocks = 0;
            let read = Changes::default().read(&bytes, |change| {
                blocks += match change {
                    Change::Store { names, copies, .. } => names.len() as u64 * u64::from(copies),
                    Change::StoreKnown { names, .. } | Change::Remove { names, .. } => names.len() as u64,
                    Change::Clear | Change::Chunk { .. } => 0,
                };
                Ok::<(), FormatError>(())
            });
            let weighed = weight(&bytes);
            assert_eq!(weighed.is_err(), read.is_err(), "both read the same");
            assert!(weighed.is_err() || weighed.is_ok_and(|weight| weight >= blocks));
            if let Ok(message) = Message::read(&bytes) {
                message.frames().for_each(drop);
                let _ = message.check();
            }
        }
    }
    let mut more = vec![2, 1 << 4];
    more.extend([0xff; 9]);
    assert!(Changes::default().read(&more, |_| Ok::<(), FormatError>(())).is_err());
}

#[test]
fn few_bytes_are_not_of_many_blocks() {
    let number = |out: &mut Vec<u8>, mut number: u64| {
        while number >= 0x80 {
            out.push(number as u8 | 0x80);
            number >>= 7;
        }
        out.push(number as u8);
    };
    // A change with a kind, a number of blocks in one run, and a number of copies of each.
    let changes = |kind: u8, blocks: u64, copies: u64| {
        let mut out = vec![kind | 1 << 6];
        number(&mut out, copies);
        number(&mut out, blocks);
        number(&mut out, 1);
        number(&mut out, (blocks - 2) << 1);
        if kind == 0 {
            out.resize(out.len() + 8 * blocks as usize, 0);
        }
        out
    };
    let message = |parts: &[Vec<u8>]| {
        let mut bytes = MessageWriter { life: 1, block_size: 16, key: 0 }.begin(0, 0.0, 0);
        parts.iter().for_each(|changes| MessageWriter::put(&mut bytes, Frame::Batch { rank: 0, changes }));
        bytes
    };
    let is_read = |parts: &[Vec<u8>]| Message::read(&message(parts)).expect("a head").check().is_ok();
    for kind in [1, 2] {
        assert!(is_read(&[changes(kind, MOST_BLOCKS, 1)]));
        assert!(!is_read(&[changes(kind, MOST_BLOCKS + 100, 1)]));
        assert!(!is_read(&vec![changes(kind, MOST_BLOCKS / 2, 1); 3]), "of all frames together");
    }
    assert!(is_read(&[changes(0, 2, 1 << 16)]) && !is_read(&[changes(0, 8, 1 << 16)]));
    assert!(is_read(&vec![changes(0, 1000, 1); 500]), "what has bytes of its own may be any number");
}

#[test]
fn different_numbers_are_different_names() {
    let mut names: Vec<BlockHash> = (0..10_000).map(name_of).collect();
    names.sort_unstable_by_key(|name| name.0);
    names.dedup();
    assert_eq!(names.len(), 10_000);
}
