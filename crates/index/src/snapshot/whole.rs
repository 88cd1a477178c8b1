//! An index by itself as a snapshot, and the index that one was made of.

use std::io;

use kvatlas_codec::{Cursor, ReadError, put_text, put_varint};

use super::SavedBlocks;
use super::dictionary::{Dictionary, DictionaryWriter};
use super::sections::{Section, SectionWriter, Sections, kind};
use crate::copier::{CopyState, RankCopier};
use crate::error::Error;
use crate::index::{BlockIndex, Config};
use crate::stats::Counters;
use crate::types::{BlockHash, Tier};

impl BlockIndex {
    /// Everything held, the configuration and the counts so far, as bytes. The same on every machine. Writers go on
    /// meanwhile: each rank is as it was at one moment, different ranks at different moments.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        // To write into memory does not fail.
        self.write_snapshot().unwrap_or_default()
    }

    fn write_snapshot(&self) -> io::Result<Vec<u8>> {
        let (mut ranks, counters) = self.write(|writer| (writer.rank_names(), writer.counters));
        ranks.sort_unstable();
        let mut dictionary = DictionaryWriter::default();
        let mut payloads = Vec::with_capacity(ranks.len());
        for (worker, rank) in ranks {
            let mut payload = Vec::new();
            put_text(&mut payload, &worker);
            put_varint(&mut payload, rank.into());
            let mut copier = RankCopier::new(self, &worker, rank);
            let copy = loop {
                match copier.step(Self::SLICE) {
                    CopyState::More(more) => copier = more,
                    CopyState::Done(done) => break done.sorted(),
                }
            };
            dictionary.rank(&mut payload, copy, false);
            payloads.push(payload);
        }
        let mut out = SectionWriter::new(Vec::new())?;
        let mut head = Vec::new();
        let Config { block_size, count_copies } = self.config();
        let Counters { stores, removes, clears, drops, replaced, unknown_removals, private_holders: _ } = counters;
        let counts = [stores, removes, clears, drops, replaced, unknown_removals];
        for number in [block_size.into(), count_copies.into()].into_iter().chain(counts) {
            put_varint(&mut head, number);
        }
        out.section(kind::INDEX, &head)?;
        dictionary.sections().try_for_each(|payload| out.section(kind::BLOCKS, &payload))?;
        payloads.iter().try_for_each(|payload| out.section(kind::RANK, payload))?;
        Ok(out.end()?.0)
    }

    /// The index that a snapshot was made of.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if the bytes are no snapshot of an index, of another version, cut off or altered,
    /// [`Error::Full`] if there is too much in it.
    pub fn from_snapshot(snapshot: &[u8]) -> Result<Self, Error> {
        let mut sections = Sections::new(snapshot).map_err(wrong)?;
        let mut reading = PartialSnapshot { index: None, dictionary: Dictionary::default() };
        while let Some(section) = sections.next().map_err(wrong)? {
            reading.section(section).map_err(|error| match error {
                Error::Snapshot { what } => wrong(section.wrong(&what)),
                other => other,
            })?;
        }
        let (index, counts) = reading.index.ok_or_else(|| wrong("it has no head".to_owned()))?;
        let [stores, removes, clears, drops, replaced, unknown_removals] = counts;
        index.write(|writer| {
            let private_holders = writer.counters.private_holders;
            writer.counters = Counters { stores, removes, clears, drops, replaced, unknown_removals, private_holders };
        });
        Ok(index)
    }
}

fn wrong(what: String) -> Error {
    Error::Snapshot { what }
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        wrong(error.into())
    }
}

/// A snapshot, as far as it is read.
struct PartialSnapshot {
    /// The index, and the counts that it had.
    index: Option<(BlockIndex, [u64; 6])>,
    dictionary: Dictionary,
}

impl PartialSnapshot {
    fn section(&mut self, section: Section<'_>) -> Result<(), Error> {
        let mut cursor = Cursor(section.payload);
        match (section.kind, &self.index) {
            (kind::INDEX, None) => {
                let (block_size, count_copies) = (cursor.small()?, cursor.varint()? != 0);
                let config = Config { block_size, count_copies };
                let index = BlockIndex::new(config).map_err(|error| wrong(error.to_string()))?;
                let mut counts = [0; 6];
                for count in &mut counts {
                    *count = cursor.varint()?;
                }
                cursor.end()?;
                self.index = Some((index, counts));
            }
            (kind::BLOCKS, Some(_)) => self.dictionary.read(section.payload).map_err(wrong)?,
            (kind::RANK, Some((index, _))) => {
                let (worker, rank) = (cursor.text()?, cursor.small()?);
                let blocks = SavedBlocks::read(&mut cursor, &self.dictionary).map_err(wrong)?;
                cursor.end()?;
                restore(index, worker, rank, &blocks, &self.dictionary)?;
            }
            (kind::HEAD | kind::KEYSPACE | kind::STREAM, None) => {
                return Err(wrong("the snapshot is of a service, and only a service can go on from it".to_owned()));
            }
            _ => return Err(wrong(section.misplaced())),
        }
        Ok(())
    }
}

/// Puts what one rank holds into the index.
fn restore(
    index: &BlockIndex,
    worker: &str,
    rank: u32,
    blocks: &SavedBlocks,
    dictionary: &Dictionary,
) -> Result<(), Error> {
    if blocks.blocks() == 0 {
        // A rank becomes known by its first block, and stays so without it.
        index.store(worker, rank, Tier::Gpu, None, &[BlockHash(0)], &[0])?;
        index.clear(worker, Some(rank), None);
    }
    let mut changes = index.changes();
    for (tier, parent, names, contents) in blocks.stores(dictionary) {
        changes.store(&(worker, rank), tier, parent, names, contents)?;
    }
    Ok(())
}
