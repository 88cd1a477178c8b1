//! Binary format of a service's snapshot: encoder and decoder. `kvatlas_index::snapshot` has the sections and the
//! blocks. This file has the parts specific to a service: the header, the keyspaces, and for each stream its mark
//! (number and hash of the last batch), its cache salts, and the blocks known only from engines' reports of cached
//! tokens.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use kvatlas_codec::{Cursor, put_text, put_varint, put_words};
use kvatlas_index::snapshot::{Dictionary, DictionaryWriter, SavedBlocks, Section, SectionWriter, Sections, kind};
use kvatlas_index::{BlockHash, SavedPool, SavedPoolBlock};
use kvatlas_wire::SaltedBlock;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::state::{KeyedPool, RankBlocks, SavedKeyspace, SavedRank, SavedStream, StreamCopy, StreamHead};

/// Header of a snapshot: the time and the version of kvatlas with which it was written.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Head {
    /// Time at which the snapshot was made, in seconds since 1970.
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

/// Size of a snapshot: numbers of bytes, streams and blocks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SnapshotSize {
    pub(crate) bytes: u64,
    pub(crate) streams: u64,
    /// Number of blocks in the snapshot that ranks hold, summed over all ranks.
    pub(crate) blocks: u64,
    /// Number of distinct blocks, summed over all models and routing groups.
    pub(crate) distinct: u64,
    /// Lowest sequence number up to which the NATS log was read, among all streams that are read from the log; `None`
    /// if there are none.
    pub(crate) sequence: Option<u64>,
}

/// Encoder of a snapshot, which writes one section after the other.
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

    /// Writes a keyspace (model and routing group) with its streams and shared pools.
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
        keyspace.pools.iter().try_for_each(|pool| out.section(kind::POOL, &encode_pool(pool)))?;
        written.streams += keyspace.streams.len() as u64;
        written.blocks += keyspace.blocks;
        written.sequence = [written.sequence, keyspace.sequence].into_iter().flatten().min();
        written.distinct += keyspace.dictionary.blocks();
        Ok(())
    }

    /// Writes the end mark of the snapshot. Returns the output and the snapshot's size.
    pub(crate) fn end(self) -> io::Result<(W, SnapshotSize)> {
        let (out, bytes) = self.out.end()?;
        Ok((out, SnapshotSize { bytes, ..self.written }))
    }
}

fn json(it: &impl Serialize) -> io::Result<Vec<u8>> {
    serde_json::to_vec(it).map_err(io::Error::other)
}

/// Encoded streams of a keyspace (model and routing group), with the dictionary of blocks to which they refer. The
/// dictionary precedes the streams in the file.
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

    /// Adds a shared pool (a store that several engines load from), unless a pool with the same name was added before.
    pub(super) fn pool(&mut self, pool: KeyedPool) {
        if self.pools.iter().all(|it| it.pool.name != pool.pool.name) {
            self.pools.push(pool);
        }
    }

    /// Adds a stream to the encoded keyspace. `elsewhere` is true if the stream's runs (arrays of consecutive blocks)
    /// belong to another index than the keyspace's.
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

/// Contents of a snapshot, after its bytes were decoded: header, and keyspaces with their streams.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) head: Head,
    pub(crate) keyspaces: Vec<SavedKeyspace>,
}

/// Decodes a snapshot from uncompressed bytes.
///
/// # Errors
/// A message that names the damaged section and its fault.
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
            (kind::POOL, Some(keyspace)) => keyspace.pools.push(decode_pool(payload)?),
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

/// First bytes of data compressed with zstd.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Uncompressed size, in bytes, that is allowed for any compressed snapshot, however small.
const FREE: u64 = 4 << 20;
/// Number of uncompressed bytes allowed per compressed byte of a snapshot, in addition to [`FREE`]. Most of a snapshot
/// is hashes, which cannot be compressed; if engines hold equal blocks, the ratio is about ten.
const RATIO: u64 = 64;
/// Maximum number of bytes of memory that are allocated in advance for a snapshot whose sender has announced its size.
const ANNOUNCED: u64 = 1 << 20;

/// Makes the message for a snapshot that is larger than `most` bytes.
pub(crate) fn too_large(most: u64) -> String {
    format!("it has more than {most} bytes: raise snapshot.max_bytes if that is right")
}

/// Reads a file with a snapshot. Fails if the file has more than `most` bytes.
pub(crate) fn read_file(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    if size > most {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, too_large(most)));
    }
    let mut bytes = Vec::with_capacity(size as usize);
    bounded(file, &mut bytes, most)?;
    Ok(bytes)
}

/// Reads all bytes of a snapshot. `announced` is the size in bytes that the sender has announced.
///
/// # Errors
/// A message if there are more than `most` bytes, or reading fails.
pub(crate) async fn read_all(from: impl AsyncRead + Unpin, announced: u64, most: u64) -> Result<Vec<u8>, String> {
    if announced > most {
        return Err(too_large(most));
    }
    let mut bytes = Vec::with_capacity(announced.min(ANNOUNCED) as usize);
    from.take(most + 1).read_to_end(&mut bytes).await.map_err(|error| error.to_string())?;
    if bytes.len() as u64 > most { Err(too_large(most)) } else { Ok(bytes) }
}

/// Decompresses a snapshot, if it is compressed.
///
/// # Errors
/// A message if the uncompressed snapshot has more than `most` bytes, or cannot be decompressed.
pub(crate) fn unpack(bytes: &[u8], most: u64) -> Result<Cow<'_, [u8]>, String> {
    if bytes.len() as u64 > most {
        return Err(too_large(most));
    }
    if !bytes.starts_with(&ZSTD) {
        return Ok(Cow::Borrowed(bytes));
    }
    let plausible = FREE + RATIO * bytes.len() as u64;
    let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 8);
    let unpacking = zstd::Decoder::new(bytes).and_then(|from| bounded(from, &mut out, plausible.min(most)));
    unpacking.map_err(|error| match error.kind() {
        io::ErrorKind::FileTooLarge if plausible < most => {
            format!("{} bytes of it become more than {plausible}, which no snapshot does", bytes.len())
        }
        io::ErrorKind::FileTooLarge => too_large(most),
        _ => format!("it cannot be decompressed: {error}"),
    })?;
    Ok(Cow::Owned(out))
}

/// Reads `from` to its end, and appends the bytes to `out`. Fails if there are more than `most` bytes.
fn bounded(from: impl Read, out: &mut Vec<u8>, most: u64) -> io::Result<()> {
    let read = from.take(most + 1).read_to_end(out)?;
    if read as u64 > most { Err(io::Error::new(io::ErrorKind::FileTooLarge, too_large(most))) } else { Ok(()) }
}

/// Flag in the first byte of an encoded block: the block hash of the parent follows.
const HAS_PARENT: u8 = 1;
/// Flag in the first byte of an encoded block: the prefix hash follows.
const HAS_PREFIX: u8 = 2;
const IS_HELD: u8 = 4;
/// Minimum length of an encoded block, in bytes: flags, block hash and content hash.
const LEAST: usize = 1 + 8 + 8;

/// Encodes a shared pool (a store that several engines load from) with its blocks.
pub(super) fn encode_pool(it: &KeyedPool) -> Vec<u8> {
    let mut out = Vec::with_capacity(16 + 32 * it.pool.blocks.len());
    put_varint(&mut out, it.key.into());
    put_text(&mut out, &it.pool.name);
    put_varint(&mut out, it.pool.blocks.len() as u64);
    for block in &it.pool.blocks {
        let parts = [
            (HAS_PARENT, block.parent.is_some()),
            (HAS_PREFIX, block.prefix.is_some()),
            (IS_HELD, block.age.is_some()),
        ];
        out.push(parts.iter().filter(|(_, has)| *has).map(|(bit, _)| bit).sum());
        put_words(&mut out, [Some(block.name), Some(block.content), block.parent, block.prefix].into_iter().flatten());
        if let Some(age) = block.age {
            put_varint(&mut out, (age.max(0.0) * 1e3) as u64);
        }
    }
    out
}

/// Decodes a shared pool (a store that several engines load from) with its blocks.
///
/// # Errors
/// A message that describes the fault in the bytes.
pub(super) fn decode_pool(payload: &[u8]) -> Result<KeyedPool, String> {
    let mut cursor = Cursor(payload);
    let key = cursor.small()?;
    let name = cursor.text()?.into();
    let count = cursor.count(LEAST)?;
    let blocks = (0..count).map(|_| block(&mut cursor)).collect::<Result<_, _>>()?;
    cursor.end()?;
    Ok(KeyedPool { key, pool: SavedPool { name, blocks } })
}

fn block(cursor: &mut Cursor<'_>) -> Result<SavedPoolBlock, String> {
    let parts = cursor.byte()?;
    if parts & !(HAS_PARENT | HAS_PREFIX | IS_HELD) != 0 {
        return Err(format!("a block has parts {parts:#04x}, which are not known"));
    }
    let (name, content) = (cursor.word()?, cursor.word()?);
    let parent = if parts & HAS_PARENT != 0 { Some(cursor.word()?) } else { None };
    let prefix = if parts & HAS_PREFIX != 0 { Some(cursor.word()?) } else { None };
    let age = if parts & IS_HELD != 0 { Some(cursor.varint()? as f64 / 1e3) } else { None };
    Ok(SavedPoolBlock { name, parent, content, prefix, age })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(bytes: &[u8]) -> Vec<u8> {
        zstd::encode_all(bytes, 1).expect("packed")
    }

    #[test]
    fn little_does_not_become_much() {
        let plain = vec![7; 1000];
        assert_eq!(unpack(&packed(&plain), 1 << 20).as_deref(), Ok(&plain[..]));
        let bomb = packed(&vec![0; 64 << 20]);
        assert!(bomb.len() < 16 << 10, "{}", bomb.len());
        let why = unpack(&bomb, 1 << 30).expect_err("too much");
        assert!(why.contains("which no snapshot does"), "{why}");
        let why = unpack(&bomb, 1 << 20).expect_err("too much");
        assert!(why.contains("snapshot.max_bytes"), "{why}");
        assert!(unpack(&plain, 999).is_err() && unpack(&plain, 1000).is_ok());
        let two = [packed(&plain), packed(&vec![0; 8 << 20])].concat();
        assert!(unpack(&two, 1 << 20).is_err(), "in several frames");
    }

    #[tokio::test]
    async fn what_is_only_announced_takes_nothing() {
        assert_eq!(read_all(&b"abc"[..], 3, 3).await.as_deref(), Ok(&b"abc"[..]));
        assert_eq!(read_all(&b"abc"[..], u64::MAX >> 1, u64::MAX >> 1).await.map(|bytes| bytes.len()), Ok(3));
        assert!(read_all(&b"abc"[..], 4, 3).await.is_err() && read_all(&b"abcd"[..], 3, 3).await.is_err());
    }

    #[test]
    fn a_pool_comes_out_as_it_went_in_or_not_at_all() {
        let block = |name, parent, prefix, age| SavedPoolBlock { name, parent, content: name * 10, prefix, age };
        let blocks = vec![
            block(1, None, Some(10), Some(0.25)),
            block(2, Some(1), None, None),
            block(u64::MAX / 16, Some(2), Some(u64::MAX), Some(1e6)),
        ];
        let it = KeyedPool { key: 7, pool: SavedPool { name: "folder".into(), blocks } };
        let bytes = encode_pool(&it);
        assert_eq!(decode_pool(&bytes), Ok(it));
        for end in 0..bytes.len() {
            assert!(decode_pool(&bytes[..end]).is_err(), "cut off at {end}");
        }
        assert!(decode_pool(&[&bytes[..], &[0]].concat()).is_err());
        let mut unknown = bytes;
        unknown[9] = 0x80;
        assert!(decode_pool(&unknown).expect_err("unknown parts").contains("0x80"));
    }
}
