//! The format of a service's snapshot, written and read. `kvatlas_index::snapshot` has the sections and the blocks; this file
//! has the parts that only a service has: the head, the keyspaces, and of each stream its mark, its salts, and the blocks
//! known from answers.

use std::io::{self, Write};
use std::sync::Arc;

use kvatlas_codec::{Cursor, put_text, put_varint, put_words};
use kvatlas_index::BlockHash;
use kvatlas_index::snapshot::{Dictionary, DictionaryWriter, SavedBlocks, Section, SectionWriter, Sections, kind};
use kvatlas_wire::SaltedBlock;
use serde::{Deserialize, Serialize};

use super::pools;
use crate::state::{KeyedPool, RankBlocks, SavedKeyspace, SavedRank, SavedStream, StreamCopy, StreamHead};

/// Head of a snapshot.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Head {
    /// Seconds since 1970.
    pub(crate) created: f64,
    /// Version of kvatlas that wrote the snapshot.
    pub(crate) kvatlas: String,
    /// Identifier of the snapshot.
    pub(crate) id: u64,
}

#[derive(Serialize, Deserialize)]
pub(super) struct KeyspaceHead {
    pub(super) model: String,
    pub(super) routing_group: String,
    pub(super) block_size: u32,
}

/// Counts of the contents of a snapshot.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SnapshotSize {
    pub(crate) bytes: u64,
    pub(crate) streams: u64,
    /// Blocks held, summed over ranks.
    pub(crate) blocks: u64,
    /// Distinct blocks, summed over dictionaries.
    pub(crate) distinct: u64,
    /// Least sequence number up to which a stream was read from the log; none if no stream was.
    pub(crate) sequence: Option<u64>,
}

/// Writes a snapshot.
pub(crate) struct Encoder<W> {
    out: SectionWriter<W>,
    written: SnapshotSize,
}

impl<W: Write> Encoder<W> {
    pub(crate) fn new(out: W, head: &Head) -> io::Result<Self> {
        let mut out = SectionWriter::new(out)?;
        out.section(kind::HEAD, &json(head)?)?;
        Ok(Self { out, written: SnapshotSize::default() })
    }

    /// Writes a keyspace.
    pub(crate) fn keyspace(
        &mut self,
        model: &str,
        routing_group: &str,
        block_size: u32,
        keyspace: &KeyspaceCopy,
    ) -> io::Result<()> {
        let Self { out, written } = self;
        let (model, routing_group) = (model.to_owned(), routing_group.to_owned());
        out.section(kind::KEYSPACE, &json(&KeyspaceHead { model, routing_group, block_size })?)?;
        keyspace.dictionary.sections().try_for_each(|payload| out.section(kind::BLOCKS, &payload))?;
        keyspace.streams.iter().try_for_each(|stream| out.section(kind::STREAM, stream))?;
        keyspace.pools.iter().try_for_each(|pool| out.section(kind::POOL, &pools::encode(pool)))?;
        written.streams += keyspace.streams.len() as u64;
        written.blocks += keyspace.blocks;
        written.sequence = [written.sequence, keyspace.sequence].into_iter().flatten().min();
        written.distinct += keyspace.dictionary.blocks();
        Ok(())
    }

    /// Writes the end.
    pub(crate) fn end(self) -> io::Result<(W, SnapshotSize)> {
        let (out, bytes) = self.out.end()?;
        Ok((out, SnapshotSize { bytes, ..self.written }))
    }
}

fn json(it: &impl Serialize) -> io::Result<Vec<u8>> {
    serde_json::to_vec(it).map_err(io::Error::other)
}

/// Encoded streams of a keyspace, with the dictionary that they refer to, which precedes them in the file.
#[derive(Default)]
pub(crate) struct KeyspaceCopy {
    dictionary: DictionaryWriter,
    streams: Vec<Vec<u8>>,
    pools: Vec<KeyedPool>,
    blocks: u64,
    sequence: Option<u64>,
}

impl KeyspaceCopy {
    pub(crate) fn is_empty(&self) -> bool {
        self.streams.is_empty() && self.pools.is_empty()
    }

    /// Adds a pool, unless there is one with its name.
    pub(super) fn pool(&mut self, pool: KeyedPool) {
        if self.pools.iter().all(|it| it.pool.name != pool.pool.name) {
            self.pools.push(pool);
        }
    }

    /// Adds a stream. `elsewhere`: its runs are not of this keyspace's index.
    pub(crate) fn stream(&mut self, stream: StreamCopy, elsewhere: bool) -> io::Result<()> {
        let mut out = Vec::new();
        let head = json(&stream.head)?;
        self.sequence = [self.sequence, stream.head.sequence].into_iter().flatten().min();
        put_varint(&mut out, head.len() as u64);
        out.extend(head);
        for rank in stream.ranks {
            self.rank(&mut out, rank, elsewhere);
        }
        self.streams.push(out);
        Ok(())
    }

    fn rank(&mut self, out: &mut Vec<u8>, rank: RankBlocks, elsewhere: bool) {
        self.blocks += self.dictionary.rank(out, rank.held, elsewhere);
        let mut salts: Vec<&str> = rank.salts.iter().map(|block| &*block.salt).collect();
        salts.sort_unstable();
        salts.dedup();
        put_varint(out, salts.len() as u64);
        salts.iter().for_each(|salt| put_text(out, salt));
        put_varint(out, rank.salts.len() as u64);
        for block in &rank.salts {
            put_words(out, [block.name.0]);
            put_varint(out, salts.binary_search(&&*block.salt).unwrap_or_default() as u64);
            block.copies.iter().for_each(|copies| put_varint(out, (*copies).into()));
        }
        put_varint(out, rank.answered.len() as u64);
        put_words(out, rank.answered.iter().map(|name| name.0));
    }
}

/// A snapshot read from its bytes.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) head: Head,
    pub(crate) keyspaces: Vec<SavedKeyspace>,
}

/// Reads a snapshot.
///
/// # Errors
/// A text that names the damaged section and the fault in it.
pub(crate) fn decode(bytes: &[u8]) -> Result<Snapshot, String> {
    let mut sections = Sections::new(bytes)?;
    let mut read = PartialSnapshot { head: None, keyspaces: Vec::new() };
    while let Some(section) = sections.next()? {
        read.section(section).map_err(|what| section.wrong(&what))?;
    }
    let head = read.head.ok_or("it has no head")?;
    Ok(Snapshot { head, keyspaces: read.keyspaces })
}

struct PartialSnapshot {
    head: Option<Head>,
    keyspaces: Vec<SavedKeyspace>,
}

impl PartialSnapshot {
    fn section(&mut self, section: Section<'_>) -> Result<(), String> {
        let payload = section.payload;
        match (section.kind, self.keyspaces.last_mut()) {
            (kind::HEAD, None) if self.head.is_none() => self.head = Some(from_json(payload)?),
            (kind::KEYSPACE, _) => {
                let KeyspaceHead { model, routing_group, block_size } = from_json(payload)?;
                let (dictionary, streams, pools) = (Dictionary::default(), Vec::new(), Vec::new());
                self.keyspaces.push(SavedKeyspace { model, routing_group, block_size, dictionary, streams, pools });
            }
            (kind::BLOCKS, Some(keyspace)) => keyspace.dictionary.read(payload)?,
            (kind::STREAM, Some(keyspace)) => {
                let stream = stream(payload, &keyspace.dictionary)?;
                keyspace.streams.push(stream);
            }
            (kind::POOL, Some(keyspace)) => keyspace.pools.push(pools::decode(payload)?),
            (kind::INDEX, None) => {
                return Err("the snapshot is of an index by itself, which knows no streams".to_owned());
            }
            _ => return Err(section.misplaced()),
        }
        Ok(())
    }
}

fn from_json<'a, T: serde::Deserialize<'a>>(payload: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(payload).map_err(|error| error.to_string())
}

fn stream(payload: &[u8], dictionary: &Dictionary) -> Result<SavedStream, String> {
    let mut cursor = Cursor(payload);
    let length = cursor.varint()?;
    let head: StreamHead = from_json(cursor.bytes(length)?)?;
    let ranks = head.ranks.iter().map(|_| rank(&mut cursor, dictionary)).collect::<Result<_, _>>()?;
    cursor.end()?;
    Ok(SavedStream { head, ranks })
}

fn rank(cursor: &mut Cursor<'_>, dictionary: &Dictionary) -> Result<SavedRank, String> {
    let held = SavedBlocks::read(cursor, dictionary)?;
    let mut names: Vec<Arc<str>> = Vec::new();
    for _ in 0..cursor.count(1)? {
        let salt = cursor.text()?;
        if names.last().is_some_and(|last| **last >= *salt) {
            return Err("its salts are not in increasing order".to_owned());
        }
        names.push(salt.into());
    }
    let mut salts = Vec::new();
    for _ in 0..cursor.count(8 + 1 + 4)? {
        let name = BlockHash(cursor.word()?);
        let salt = usize::try_from(cursor.varint()?).ok().and_then(|at| names.get(at));
        let salt = salt.ok_or("it is of a salt that is not there")?.clone();
        let mut copies = [0; 4];
        for copies in &mut copies {
            *copies = cursor.small()?;
        }
        salts.push(SaltedBlock { name, salt, copies });
    }
    let answered = cursor.count(8)?;
    let answered = cursor.words(answered)?.map(BlockHash).collect();
    Ok(SavedRank { held, salts, answered })
}
