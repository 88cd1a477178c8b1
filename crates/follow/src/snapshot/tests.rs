//! Tests that a snapshot is decoded as it was encoded, that a damaged one is refused with the name of the damaged
//! section, and that a directory belongs to one service.

#![allow(clippy::single_range_in_vec_init, reason = "a list of ranges, of which there is one at times")]

use std::io;
use std::sync::Arc;

use kvatlas_adopt::Frontier;
use kvatlas_codec::Cursor;
use kvatlas_index::snapshot::{SectionWriter, Sections};
use kvatlas_index::{BlockHash, CopiedBlock, CopiedChain, RankCopy, UniformChain};
use kvatlas_wire::{ReaderState, SaltedBlock};

use super::format::{Encoder, Head, KeyspaceCopy, Snapshot, decode};
use super::keeper::Directory;
use crate::state::{RankBlocks, RankHead, SavedRank, StreamCopy, StreamHead, UnnamedProofs};
use kvatlas_stream::Mark;

/// Snapshot in the first released format, which must stay readable for as long as files in this format may exist.
const VERSION_1: &[u8] = include_bytes!("testdata/version-1.snapshot");

fn names(names: impl IntoIterator<Item = u64>) -> Vec<BlockHash> {
    names.into_iter().map(BlockHash).collect()
}

fn chain(run: u32, parent: Option<u64>, first: u64, blocks: u64, plain: &[std::ops::Range<usize>]) -> CopiedChain {
    CopiedChain {
        run,
        parent: parent.map(BlockHash),
        names: names(first..first + blocks),
        contents: (first..first + blocks).map(|name| name * 10).collect(),
        plain: plain.to_vec(),
    }
}

fn block(name: u64, parent: Option<u64>, copies: [u32; 4]) -> CopiedBlock {
    CopiedBlock { name: BlockHash(name), parent: parent.map(BlockHash), content: name * 10, copies }
}

fn plain(chains: Vec<CopiedChain>) -> RankBlocks {
    RankBlocks { held: RankCopy { chains, blocks: Vec::new() }, ..RankBlocks::default() }
}

fn stream(worker: &str, ranks: Vec<RankBlocks>) -> StreamCopy {
    let head = StreamHead {
        worker: worker.to_owned(),
        rank: 0,
        topic: "kv".to_owned(),
        count_copies: true,
        mark: Mark { seq: 41, hash: u64::MAX - 7 },
        first: 3,
        partial: true,
        claimed: vec![(5, 1)],
        plain: true,
        sequence: None,
        key: 0,
        ranks: (0..ranks.len() as u32)
            .map(|rank| RankHead {
                rank,
                seq: 42,
                seen: true,
                decides: Some(0),
                others: vec![1, 2],
                several: true,
                looks_ahead: false,
                shows_salts: Some(true),
                clears_host: false,
                chunks: [0; 3],
                own_chunks: [0; 3],
                has_keys: false,
                undescribed: Vec::new(),
                unknown: UnnamedProofs::default(),
            })
            .collect(),
    };
    StreamCopy { head, ranks }
}

/// Encodes a snapshot of two models. One has two workers with a common chain, missing blocks, copies, several tiers and
/// salts; the other has little.
fn example() -> Vec<u8> {
    let head = Head { created: 1_795_000_000.25, kvatlas: "0.1.0".to_owned(), id: 77 };
    let mut encoder = Encoder::new(Vec::new(), &head).expect("memory");
    let mut keyspace = KeyspaceCopy::default();
    let salted = SaltedBlock { name: BlockHash(101), salt: Arc::from("tenant"), copies: [1, 0, 2, 0] };
    let first = RankBlocks {
        held: RankCopy {
            chains: vec![chain(7, None, 100, 40, &[0..10, 12..40]), chain(9, Some(139), 200, 5, &[0..5])],
            blocks: vec![
                block(111, Some(110), [2, 0, 0, 0]),
                block(900, Some(899), [1, 0, 0, 0]),
                block(901, Some(900), [1, 0, 0, 0]),
                block(300, None, [0, 1, 0, 0]),
                block(301, Some(300), [0, 1, 0, 0]),
                block(302, Some(301), [0, 1, 3, 0]),
            ],
        },
        salts: vec![salted],
        answered: names([104]),
    };
    // Less of one chain, more of another; and a run whose number was another chain's meanwhile.
    let second = plain(vec![chain(7, None, 100, 20, &[0..20]), chain(9, Some(139), 200, 9, &[0..9])]);
    let third = plain(vec![chain(7, Some(1), 500, 3, &[0..3])]);
    keyspace.stream(stream("a", vec![first, RankBlocks::default()]), false).expect("memory");
    keyspace.stream(stream("b", vec![second]), false).expect("memory");
    keyspace.stream(stream("c", vec![third]), false).expect("memory");
    encoder.keyspace("m", "default", 16, &keyspace).expect("memory");
    let mut other = KeyspaceCopy::default();
    other.stream(stream("a", vec![RankBlocks::default()]), false).expect("memory");
    encoder.keyspace("m", "canary", 32, &other).expect("memory");
    let (bytes, written) = encoder.end().expect("memory");
    assert_eq!((written.bytes, written.streams), (bytes.len() as u64, 4));
    assert_eq!((written.blocks, written.distinct), (38 + 5 + 6 + 20 + 9 + 3, 40 + 9 + 3));
    bytes
}

/// Checks that the fields about tiers in a rank's saved state, which earlier versions lack, are left out where they are
/// empty.
#[test]
fn what_is_known_of_tiers_is_in_the_head_of_a_rank() {
    let undescribed = vec![(BlockHash(u64::MAX), [1, 0, 2]), (BlockHash(1), [0, 3, 0])];
    let (chunks, own_chunks) = ([4, 0, 1], [4, 0, 0]);
    let reader =
        ReaderState { clears_host: true, chunks, own_chunks, has_keys: true, undescribed, ..Default::default() };
    let head = RankHead::new(3, 7, true, &reader, UnnamedProofs::default());
    let text = serde_json::to_string(&head).expect("JSON");
    let back: RankHead = serde_json::from_str(&text).expect("a head");
    assert_eq!((back.reader(Vec::new()), &back), (reader, &head));
    let plain = RankHead::new(3, 7, true, &ReaderState::default(), UnnamedProofs::default());
    let text = serde_json::to_string(&plain).expect("JSON");
    assert!(["clears_host", "chunks", "has_keys", "undescribed"].iter().all(|name| !text.contains(name)), "{text}");
}

fn check(snapshot: &Snapshot) {
    assert_eq!((snapshot.head.created, snapshot.head.id), (1_795_000_000.25, 77));
    let [main, canary] = &snapshot.keyspaces[..] else { panic!("two keyspaces") };
    assert_eq!((&*main.model, &*main.routing_group, main.block_size), ("m", "default", 16));
    assert_eq!((&*canary.routing_group, canary.block_size, canary.streams.len()), ("canary", 32, 1));
    let held = |rank: &SavedRank| -> Vec<(Option<BlockHash>, Vec<BlockHash>, Vec<u64>)> {
        let pieces = rank.held.pieces.iter().map(|piece| main.dictionary.get(*piece));
        pieces.map(|(parent, names, contents)| (parent, names.to_vec(), contents.to_vec())).collect()
    };
    let piece = |parent: Option<u64>, range: std::ops::Range<u64>| {
        (parent.map(BlockHash), names(range.clone()), range.map(|name| name * 10).collect::<Vec<_>>())
    };
    let [a, b, c] = &main.streams[..] else { panic!("three streams") };
    assert_eq!(a.head, stream("a", vec![RankBlocks::default(), RankBlocks::default()]).head);
    assert_eq!(held(&a.ranks[0]), [piece(None, 100..110), piece(Some(111), 112..140), piece(Some(139), 200..205)]);
    let odd = |parent: Option<u64>, range: std::ops::Range<u64>, copies| UniformChain {
        parent: parent.map(BlockHash),
        names: names(range.clone()),
        contents: range.map(|name| name * 10).collect(),
        copies,
    };
    let wanted = [
        odd(Some(110), 111..112, [2, 0, 0, 0]),
        odd(Some(899), 900..902, [1, 0, 0, 0]),
        odd(None, 300..302, [0, 1, 0, 0]),
        odd(Some(301), 302..303, [0, 1, 3, 0]),
    ];
    assert_eq!(a.ranks[0].held.others, wanted);
    assert_eq!(a.ranks[0].salts[0], SaltedBlock { name: BlockHash(101), salt: "tenant".into(), copies: [1, 0, 2, 0] });
    assert_eq!(a.ranks[0].answered, names([104]));
    assert!(a.ranks[1].held.pieces.is_empty() && a.ranks[1].held.others.is_empty());
    assert_eq!(held(&b.ranks[0]), [piece(None, 100..120), piece(Some(139), 200..209)]);
    assert_eq!(held(&c.ranks[0]), [piece(Some(1), 500..503)]);
    assert_eq!((a.blocks(), b.blocks(), c.blocks()), (38 + 5 + 6, 29, 3));
}

#[test]
fn it_comes_out_as_it_went_in() {
    check(&decode(&example()).expect("whole"));
}

#[test]
fn what_waits_goes_into_the_next_one() {
    let snapshot = decode(&example()).expect("whole");
    let main = &snapshot.keyspaces[0];
    let head = Head { created: 1_795_000_000.25, kvatlas: "0.1.0".to_owned(), id: 77 };
    let mut encoder = Encoder::new(Vec::new(), &head).expect("memory");
    for keyspace in &snapshot.keyspaces {
        let mut copy = KeyspaceCopy::default();
        for stream in &keyspace.streams {
            copy.stream(stream.to_copy(&keyspace.dictionary), true).expect("memory");
        }
        encoder.keyspace(&keyspace.model, &keyspace.routing_group, keyspace.block_size, &copy).expect("memory");
    }
    let (bytes, written) = encoder.end().expect("memory");
    let again = decode(&bytes).expect("whole");
    let blocks = |it: &Snapshot| -> Vec<u64> { it.keyspaces[0].streams.iter().map(|it| it.blocks()).collect() };
    assert_eq!(blocks(&again), blocks(&snapshot));
    assert!(written.distinct <= main.dictionary.names.len() as u64 + 40, "{} blocks", written.distinct);
    assert_eq!(
        super::compare([("one", &example()), ("other", &bytes)]).map(|told| told.contains("\"only\":[1")),
        Ok(false)
    );
}

#[test]
fn a_file_of_the_first_version_is_read() {
    check(&decode(VERSION_1).expect("a file of version 1"));
}

#[test]
fn what_a_rank_waits_for_is_kept() {
    let mut frontier = Frontier::default();
    frontier.prove(BlockHash(u64::MAX), frontier.now());
    frontier.removed(&names([1, u64::MAX - 1]));
    frontier.prove(BlockHash(8), frontier.now());
    let unknown = UnnamedProofs::of(&frontier);
    let json = serde_json::to_string(&unknown).expect("JSON");
    let back: UnnamedProofs = serde_json::from_str(&json).expect("the same");
    assert_eq!(back.kept(), frontier.kept(usize::MAX, usize::MAX));
    // Most ranks wait for nothing, and say nothing of it: as files of the first version.
    let head = &stream("a", vec![RankBlocks::default()]).head.ranks[0];
    assert!(!serde_json::to_string(head).expect("JSON").contains("unknown"));
}

#[test]
fn every_damage_is_seen_and_named() {
    let whole = example();
    let mut seen = std::collections::BTreeSet::new();
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        let error = decode(&damaged).expect_err("damaged");
        if at >= 12 {
            assert!(error.starts_with("section "), "byte {at}: {error}");
            seen.insert(error.split_once(')').map(|(section, _)| section.to_owned()));
        }
    }
    for section in ["head", "keyspace", "blocks", "stream", "end"] {
        assert!(seen.iter().flatten().any(|it| it.contains(section)), "{section}: {seen:?}");
    }
    for length in 0..whole.len() {
        decode(&whole[..length]).expect_err("cut off");
    }
    let more = [&whole[..], b"x"].concat();
    assert!(decode(&more).expect_err("more").contains("after its end"));
    let mut later = whole.clone();
    later[8] = 2;
    assert!(decode(&later).expect_err("later").contains("version 2"));
}

/// Splits the bytes of a snapshot into its sections, each with its type; the end mark is left out.
fn sections_of(bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut sections = Sections::new(bytes).expect("a snapshot");
    std::iter::from_fn(|| sections.next().expect("whole")).map(|it| (it.kind, it.payload.to_vec())).collect()
}

/// Builds the bytes of a snapshot from its sections.
fn of_sections(sections: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut out = SectionWriter::new(Vec::new()).expect("memory");
    sections.iter().for_each(|(kind, payload)| out.section(*kind, payload).expect("memory"));
    out.end().expect("memory").0
}

/// Checks that a snapshot with correct checksums is still refused if its contents are invalid.
#[test]
fn what_is_written_wrongly_is_refused_as_well() {
    let whole = example();
    let random = &mut 7u64;
    let mut refused = 0;
    for _ in 0..3000 {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let mut sections = sections_of(&whole);
        let which = (*random >> 33) as usize % sections.len();
        let payload = &mut sections[which].1;
        let at = (*random >> 13) as usize % payload.len();
        payload[at] = (*random >> 50) as u8;
        refused += usize::from(decode(&of_sections(&sections)).is_err());
    }
    assert!(refused > 500, "{refused}: and never a panic");
}

#[test]
fn few_bytes_do_not_hold_much() {
    let whole = example();
    let sections = sections_of(&whole);
    assert!(decode(&of_sections(&sections)).is_ok());
    let at = |kind: u8| sections.iter().position(|(is, _)| *is == kind).expect("there is one");
    let with = |kind: u8, payload: Vec<u8>| {
        let mut sections = sections.clone();
        sections[at(kind)].1 = payload;
        decode(&of_sections(&sections)).expect_err("it is refused")
    };
    // A thousand chains of nothing.
    let nothing = [&[0xe8, 7][..], &[0; 1000]].concat();
    assert!(with(3, nothing).contains("ends too early"));
    assert!(with(3, [&[1, 0][..], &[0; 32]].concat()).contains("no blocks"));
    // A stream whose only rank holds the same piece again and again.
    let stream = &sections[at(4)].1;
    let mut cursor = Cursor(stream);
    let length = cursor.count(1).expect("a length");
    let head = &stream[..stream.len() - cursor.0.len() + length];
    let pieces = |count: u8, piece: &[u8]| [head, &[count], &piece.repeat(count.into())].concat();
    assert!(with(4, pieces(100, &[0, 2])).contains("more blocks than there are"));
    assert!(with(4, pieces(1, &[0, 0])).contains("holds nothing"));
    // Others of which it has more copies than there can be, or none.
    let odd = |copies: &[u8]| [head, &[0, 1, 0], copies, &[1], &[0; 16], &[0; 3]].concat();
    assert!(with(4, odd(&[0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0])).contains("more copies"));
    assert!(with(4, odd(&[0; 4])).contains("more copies"));
    let salts = [head, &[0, 0, 2, 1, b'a', 1, b'a', 0, 0]].concat();
    assert!(with(4, salts).contains("increasing order"));
}

#[test]
fn a_directory_is_one_services() {
    let path = std::env::temp_dir().join(format!("kvatlas-snapshots-{}", std::process::id()));
    let directory = Directory::open(&path.join("deeper")).expect("a new directory");
    let error = Directory::open(&path.join("deeper")).expect_err("it is in use").to_string();
    assert!(error.contains("in use by another kvatlas") && error.contains(&std::process::id().to_string()), "{error}");
    assert_eq!(directory.read(1 << 20).expect("readable"), None);
    let write = |text: &'static [u8]| {
        directory.replace(|mut out| {
            io::Write::write_all(&mut out, text)?;
            Ok((out, ()))
        })
    };
    write(b"one").expect("there is room");
    // A disk that is full, in the middle.
    let failed: io::Result<()> = directory.replace(|mut out| {
        io::Write::write_all(&mut out, b"tw")?;
        Err(io::ErrorKind::StorageFull.into())
    });
    assert_eq!(failed.expect_err("full").kind(), io::ErrorKind::StorageFull);
    assert_eq!(directory.read(1 << 20).expect("readable").as_deref(), Some(&b"one"[..]));
    write(b"three").expect("there is room again");
    assert_eq!(directory.read(1 << 20).expect("readable").as_deref(), Some(&b"three"[..]));
    let mode = |of: &str| {
        let metadata = std::fs::metadata(path.join(of)).expect("it is there");
        std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o777
    };
    let ours = ["deeper/kvatlas.snapshot", "deeper/lock", "deeper", ""];
    assert_eq!(ours.map(mode), [0o600, 0o600, 0o700, 0o700], "nobody else reads what is held");
    assert!(directory.read(4).is_err_and(|error| error.to_string().contains("snapshot.max_bytes")));
    let file = path.join("deeper/kvatlas.snapshot");
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644)).expect("ours");
    let left = std::fs::read_dir(path.join("deeper")).expect("a directory").count();
    assert_eq!(left, 2, "the snapshot and the lock");
    drop(directory);
    Directory::open(&path.join("deeper")).expect("free again");
    assert_eq!(mode("deeper/kvatlas.snapshot"), 0o600, "one of a former version");
    std::fs::remove_dir_all(&path).expect("removed");
}

#[test]
fn two_snapshots_are_compared_block_by_block() {
    let made = |ranks: Vec<RankBlocks>| {
        let head = Head { created: 0.0, kvatlas: String::new(), id: 0 };
        let mut encoder = Encoder::new(Vec::new(), &head).expect("memory");
        let mut keyspace = KeyspaceCopy::default();
        keyspace.stream(stream("w", ranks), false).expect("memory");
        encoder.keyspace("m", "default", 16, &keyspace).expect("memory");
        encoder.end().expect("memory").0
    };
    let rank = |blocks: u64| plain(vec![chain(1, None, 1, blocks, &[0..blocks as usize])]);
    let mut other = rank(8);
    other.held.chains[0].contents[5] = 0;
    other.held.blocks.push(block(77, Some(76), [1, 0, 0, 0]));
    let told = super::compare([("a", &made(vec![rank(10)])), ("b", &made(vec![other]))]).expect("whole");
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    let told = &told[0];
    assert_eq!((&told["worker"], &told["blocks"]), (&"w".into(), &serde_json::json!([10, 9])));
    assert_eq!((&told["only"], &told["other_content"]), (&serde_json::json!([2, 1]), &1.into()));
    assert_eq!(told["first_depth"], 6);
    assert_eq!(told["first"][0], serde_json::json!({ "block_hash": 6, "tier": "gpu", "depth": 6 }));
    let error =
        super::compare([("left.snapshot", b"nothing at all"), ("b", b"")]).expect_err("no snapshot").to_string();
    assert!(error.starts_with("left.snapshot: "), "{error}");
}

/// Writes the file that the test `a_file_of_the_first_version_is_read` reads. Must not be used with later versions of
/// the format.
#[test]
#[ignore = "it was run once, when the layout was made"]
fn write_version_1() {
    std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/src/snapshot/testdata/version-1.snapshot"), example())
        .expect("written");
}
