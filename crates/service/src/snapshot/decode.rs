//! A snapshot out of bytes. What is wrong with it is said by section.

use std::sync::Arc;

use kvatlas_index::BlockHash;
use kvatlas_wire::SaltedBlock;

use super::bytes::{FRAME, Source, Wrong, section};
use super::encode::{BLOCKS, END, HEAD, Head, KEYSPACE, KeyspaceHead, MAGIC, STREAM, VERSION};
use super::saved::{Dictionary, Entry, Odd, Piece, SavedKeyspace, SavedRank, SavedStream, StreamHead};

/// Kinds from here on may be left out.
const OPTIONAL: u8 = 128;

/// Copies of a block on all tiers at most.
const MOST_COPIES: u64 = 1 << 16;

/// A whole snapshot.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) head: Head,
    pub(crate) keyspaces: Vec<SavedKeyspace>,
}

/// Reads a snapshot.
///
/// # Errors
/// Which section is damaged, and how.
pub(crate) fn decode(bytes: &[u8]) -> Result<Snapshot, String> {
    let Some((start, mut rest)) = bytes.split_first_chunk::<{ MAGIC.len() + 4 }>() else {
        return Err("it is too short for a snapshot".to_owned());
    };
    if start[..MAGIC.len()] != MAGIC {
        return Err("it does not begin as a snapshot does".to_owned());
    }
    let version = start[MAGIC.len()..].iter().rev().fold(0, |all, &byte| all << 8 | u32::from(byte));
    // Version 1 is the first. The next reads two.
    if version != VERSION {
        return Err(format!("it is of version {version}, and this kvatlas reads version {VERSION}"));
    }
    let mut read = Reading { head: None, keyspaces: Vec::new(), ended: false };
    let mut number = 0;
    while !read.ended {
        let at = bytes.len() - rest.len();
        let name = rest.first().map_or("missing", |kind| name_of(*kind));
        let section = section(&mut rest).and_then(|(kind, payload)| read.section(kind, payload, number));
        section.map_err(|wrong| format!("section {number} ({name}, at byte {at}): {wrong}"))?;
        number += 1;
    }
    if !rest.is_empty() {
        return Err(format!("{} bytes come after its end", rest.len()));
    }
    let head = read.head.ok_or("it has no head")?;
    Ok(Snapshot { head, keyspaces: read.keyspaces })
}

fn name_of(kind: u8) -> &'static str {
    match kind {
        HEAD => "head",
        KEYSPACE => "keyspace",
        BLOCKS => "blocks",
        STREAM => "stream",
        END => "end",
        _ => "unknown",
    }
}

struct Reading {
    head: Option<Head>,
    keyspaces: Vec<SavedKeyspace>,
    ended: bool,
}

impl Reading {
    fn section(&mut self, kind: u8, payload: &[u8], before: u64) -> Result<(), Wrong> {
        match (kind, self.keyspaces.last_mut()) {
            (HEAD, None) if self.head.is_none() => self.head = Some(json(payload)?),
            (KEYSPACE, _) => {
                let KeyspaceHead { model, routing_group, block_size } = json(payload)?;
                let (dictionary, streams) = (Dictionary::default(), Vec::new());
                self.keyspaces.push(SavedKeyspace { model, routing_group, block_size, dictionary, streams });
            }
            (BLOCKS, Some(keyspace)) => blocks(payload, &mut keyspace.dictionary)?,
            (STREAM, Some(keyspace)) => {
                let stream = stream(payload, &keyspace.dictionary)?;
                keyspace.streams.push(stream);
            }
            (END, _) => {
                let mut source = Source(payload);
                let said = source.varint()?;
                source.done()?;
                if said != before {
                    return Err(format!("{said} sections should come before it, and {before} do"));
                }
                self.ended = true;
            }
            (OPTIONAL.., _) => {}
            _ => return Err(format!("a section of kind {kind} cannot be here")),
        }
        Ok(())
    }
}

fn json<'a, T: serde::Deserialize<'a>>(payload: &'a [u8]) -> Result<T, Wrong> {
    serde_json::from_slice(payload).map_err(|error| error.to_string())
}

fn blocks(payload: &[u8], dictionary: &mut Dictionary) -> Result<(), Wrong> {
    let mut source = Source(payload);
    // A chain has a block at least.
    let count = source.count(1 + 16)?;
    let first = dictionary.names.len();
    let mut start = first;
    dictionary.chains.reserve(count);
    for _ in 0..count {
        let said = source.varint()?;
        let parent = if said & 1 == 1 { Some(BlockHash(source.u64()?)) } else { None };
        let blocks = usize::try_from(said >> 1).map_err(|_| "a number in it is too large")?;
        if blocks == 0 {
            return Err("a chain in it has no blocks".to_owned());
        }
        dictionary.chains.push(Entry { start, blocks, parent });
        start = start.checked_add(blocks).ok_or("a number in it is too large")?;
    }
    let blocks = start - first;
    if blocks.checked_mul(16) != Some(source.0.len()) {
        return Err(format!("{blocks} blocks do not fit its length"));
    }
    dictionary.names.reserve(blocks);
    dictionary.contents.reserve(blocks);
    source.numbers(blocks, BlockHash, &mut dictionary.names)?;
    source.numbers(blocks, |content| content, &mut dictionary.contents)?;
    source.done()
}

fn stream(payload: &[u8], dictionary: &Dictionary) -> Result<SavedStream, Wrong> {
    let mut source = Source(payload);
    let length = source.count(1)?;
    let head: StreamHead = json(source.take(length)?)?;
    let ranks = head.ranks.iter().map(|_| rank(&mut source, dictionary)).collect::<Result<_, _>>()?;
    source.done()?;
    Ok(SavedStream { head, ranks })
}

fn rank(source: &mut Source<'_>, dictionary: &Dictionary) -> Result<SavedRank, Wrong> {
    let mut it = SavedRank::default();
    let count = source.count(2)?;
    it.pieces.reserve(count);
    let (mut last, mut held) = (0i64, 0_u64);
    for _ in 0..count {
        let step = source.varint()?;
        last = last.wrapping_add((step >> 1) as i64 ^ -((step & 1) as i64));
        let said = source.varint()?;
        let from = if said & 1 == 1 { source.varint()? } else { 0 };
        let entry = usize::try_from(last).ok().and_then(|entry| Some((entry, dictionary.chains.get(entry)?)));
        let (entry, known) = entry.ok_or("it is of blocks that are not there")?;
        let end = from.checked_add(said >> 1).ok_or("a number in it is too large")?;
        if end > known.blocks as u64 {
            return Err("it is of blocks that are not there".to_owned());
        }
        held = held.saturating_add(said >> 1);
        // They do not overlap.
        if said >> 1 == 0 || held > dictionary.names.len() as u64 {
            return Err("it holds nothing of a chain, or more blocks than there are".to_owned());
        }
        it.pieces.push(Piece { entry, from: from as usize, blocks: (said >> 1) as usize });
    }
    for _ in 0..source.count(1 + 4 + 1 + 16)? {
        let parent = if source.byte()? == 1 { Some(BlockHash(source.u64()?)) } else { None };
        let mut copies = [0; 4];
        for copies in &mut copies {
            *copies = source.small()?;
        }
        let blocks = source.count(16)?;
        let all: u64 = copies.iter().map(|copies| u64::from(*copies)).sum();
        if blocks == 0 || all == 0 || all > MOST_COPIES {
            return Err("a chain in it has no blocks, or more copies of them than there can be".to_owned());
        }
        let (mut names, mut contents) = (Vec::with_capacity(blocks), Vec::with_capacity(blocks));
        source.numbers(blocks, BlockHash, &mut names)?;
        source.numbers(blocks, |content| content, &mut contents)?;
        it.odd.push(Odd { parent, names, contents, copies });
    }
    let mut salts: Vec<Arc<str>> = Vec::new();
    for _ in 0..source.count(1)? {
        let salt = source.text()?;
        if salts.last().is_some_and(|last| **last >= *salt) {
            return Err("its salts are not in increasing order".to_owned());
        }
        salts.push(salt.into());
    }
    for _ in 0..source.count(8 + 1 + 4)? {
        let name = BlockHash(source.u64()?);
        let salt = usize::try_from(source.varint()?).ok().and_then(|at| salts.get(at));
        let salt = salt.ok_or("it is of a salt that is not there")?.clone();
        let mut copies = [0; 4];
        for copies in &mut copies {
            *copies = source.small()?;
        }
        it.salts.push(SaltedBlock { name, salt, copies });
    }
    let answered = source.count(8)?;
    source.numbers(answered, BlockHash, &mut it.answered)?;
    Ok(it)
}

/// The least that a section takes.
const _: () = assert!(FRAME == 17);
