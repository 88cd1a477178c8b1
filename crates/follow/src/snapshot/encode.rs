//! A service's snapshot as bytes. `kvatlas_index::snapshot` has the format; here are the parts that only a service has:
//! its head, its keyspaces, and of each stream its mark, its salts, and what answers have said.

use std::io::{self, Write};

use kvatlas_codec::{put_text, put_varint, put_words};
use kvatlas_index::snapshot::{DictionaryWriter, SectionWriter, kind};
use serde::{Deserialize, Serialize};

use super::saved::{RankBlocks, StreamCopy};

/// The head of a snapshot: what it says of itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Head {
    /// Seconds since 1970.
    pub(crate) created: f64,
    /// The version of kvatlas that wrote it.
    pub(crate) kvatlas: String,
    /// A number of its own.
    pub(crate) id: u64,
}

#[derive(Serialize, Deserialize)]
pub(super) struct KeyspaceHead {
    pub(super) model: String,
    pub(super) routing_group: String,
    pub(super) block_size: u32,
}

/// Counts of what went into a snapshot.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SnapshotSize {
    pub(crate) bytes: u64,
    pub(crate) streams: u64,
    /// Blocks held, by each rank.
    pub(crate) blocks: u64,
    /// Different blocks of all dictionaries.
    pub(crate) distinct: u64,
    /// The place up to which a log was read, by the stream that came least far; none if no stream came by one.
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

/// A keyspace's streams, encoded. The dictionary that they refer to comes before them in the file.
#[derive(Default)]
pub(crate) struct KeyspaceCopy {
    dictionary: DictionaryWriter,
    streams: Vec<Vec<u8>>,
    blocks: u64,
    sequence: Option<u64>,
}

impl KeyspaceCopy {
    pub(crate) fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Adds a stream. `elsewhere`: its runs are not those of this keyspace's index.
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
