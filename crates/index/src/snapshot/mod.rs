//! Snapshots: the format in which blocks and their holders are stored for a restart or for another process.
//!
//! ```text
//! "KVASNAP\0"  version u32
//! sections:    kind u8, length u64, payload, XXH3-64 (over the XXH3-64 of kind and length and the XXH3-64 of the payload)
//!
//! 1 head       JSON: time, version of the writer, an identifier
//! 2 keyspace   JSON: model, routing group, block size; the following sections belong to it
//! 3 blocks     part of the dictionary: for each chain, its blocks * 2 + whether it has a parent, varint, and the
//!              parent u64; then all names, then all content hashes, u64 each
//! 4 stream     head in JSON (its length before it), then for each rank: its blocks, salted blocks, blocks known from
//!              answers
//! 5 end        number of sections before it, varint
//! 6 index      block size, count copies, counters, varints; the following sections belong to it
//! 7 rank       worker (text), rank (varint), its blocks
//! ```
//!
//! A service's snapshot has the sections 1 to 5; a [`BlockIndex`] by itself writes 6, 3, 7 and 5.
//!
//! The blocks of a rank are pieces of the dictionary's chains, with one copy of each block on the device, then other
//! blocks with their copies on each tier. Blocks that several ranks hold under the same block hashes are in the
//! dictionary once. A block takes 16 bytes there, as its two hashes of 64 bits cannot be compressed; a rank's part of a
//! chain takes 2 to 6 bytes.
//!
//! To change the layout, increase the version, write the new layout, and read both. JSON may get more fields without a
//! new version. Readers skip sections of unknown kinds from 128 on.

mod dictionary;
mod sections;

use std::io;

use kvatlas_codec::{Cursor, ReadError, from_zigzag, put_text, put_varint, put_words, zigzag};

pub use self::dictionary::{Dictionary, DictionaryWriter, Entry, Piece};
pub use self::sections::{Section, SectionWriter, Sections, kind};
use crate::copied::{RankCopy, UniformChain};
use crate::copier::{CopyState, RankCopier};
use crate::index::{BlockIndex, Config};
use crate::stats::Counters;
use crate::types::{BlockHash, Error, Tier};

/// Largest accepted total number of copies of a block over all tiers; a snapshot with more is rejected as invalid.
const MOST_COPIES: u64 = 1 << 16;

/// Blocks of one rank, as read from a snapshot.
#[derive(Debug, Default)]
pub struct SavedBlocks {
    /// Blocks with exactly one copy, on the device, as parts of the dictionary's chains.
    pub pieces: Vec<Piece>,
    /// Blocks with other numbers of copies or on other tiers.
    pub others: Vec<UniformChain>,
}

impl DictionaryWriter {
    /// Writes the blocks that a rank holds to `out`. Returns the number of block hashes on the device plus the number
    /// of block hashes on other tiers. `elsewhere`: true if the rank's runs of blocks belong to another index than
    /// those of other ranks.
    pub fn rank(&mut self, out: &mut Vec<u8>, mut rank: RankCopy, elsewhere: bool) -> u64 {
        let mut blocks = rank.blocks.len() as u64;
        let others = rank.uniform_chains();
        let chains = std::mem::take(&mut rank.chains);
        put_varint(out, chains.iter().map(|chain| chain.plain.len() as u64).sum());
        let mut last = 0;
        for mut chain in chains {
            let plain = std::mem::take(&mut chain.plain);
            let entry = self.entry(chain, elsewhere) as u64;
            for part in plain {
                // Usually the next one, from its beginning.
                put_varint(out, zigzag(last, entry));
                put_varint(out, (part.len() as u64) << 1 | u64::from(part.start > 0));
                if part.start > 0 {
                    put_varint(out, part.start as u64);
                }
                blocks += part.len() as u64;
                last = entry;
            }
        }
        put_varint(out, others.len() as u64);
        for UniformChain { parent, names, contents, copies } in others {
            out.push(u8::from(parent.is_some()));
            put_words(out, parent.map(|parent| parent.0));
            copies.iter().for_each(|copies| put_varint(out, (*copies).into()));
            put_varint(out, names.len() as u64);
            put_words(out, names.iter().map(|name| name.0));
            put_words(out, contents);
        }
        blocks
    }
}

impl SavedBlocks {
    /// Reads the blocks that a rank holds.
    ///
    /// # Errors
    ///
    /// A description of what is wrong with the section.
    pub fn read(cursor: &mut Cursor<'_>, dictionary: &Dictionary) -> Result<Self, String> {
        let mut it = Self::default();
        let count = cursor.count(2)?;
        it.pieces.reserve(count);
        let (mut last, mut held) = (0, 0_u64);
        for _ in 0..count {
            last = from_zigzag(last, cursor.varint()?);
            let said = cursor.varint()?;
            let from = if said & 1 == 1 { cursor.varint()? } else { 0 };
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
        for _ in 0..cursor.count(1 + 4 + 1 + 16)? {
            let parent = if cursor.byte()? == 1 { Some(BlockHash(cursor.word()?)) } else { None };
            let mut copies = [0; 4];
            for copies in &mut copies {
                *copies = cursor.small()?;
            }
            let blocks = cursor.count(16)?;
            let all: u64 = copies.iter().map(|copies| u64::from(*copies)).sum();
            if blocks == 0 || all == 0 || all > MOST_COPIES {
                return Err("a chain in it has no blocks, or more copies of them than there can be".to_owned());
            }
            let names = cursor.words(blocks)?.map(BlockHash).collect();
            let contents = cursor.words(blocks)?.collect();
            it.others.push(UniformChain { parent, names, contents, copies });
        }
        Ok(it)
    }

    /// Number of blocks that the rank holds: block hashes on the device plus block hashes on other tiers.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        let pieces = self.pieces.iter().map(|piece| piece.blocks as u64).sum::<u64>();
        pieces + self.others.iter().map(|chain| chain.names.len() as u64).sum::<u64>()
    }

    /// Number of copies of all blocks that the rank holds.
    #[must_use]
    pub fn copies(&self) -> u64 {
        let pieces = self.pieces.iter().map(|piece| piece.blocks as u64).sum::<u64>();
        let of = |chain: &UniformChain| {
            chain.names.len() as u64 * chain.copies.iter().map(|copies| u64::from(*copies)).sum::<u64>()
        };
        pieces + self.others.iter().map(of).sum::<u64>()
    }

    /// Store operations that restore the blocks, in order: tier, parent, block hashes and content hashes of each.
    pub fn stores<'a>(
        &'a self,
        dictionary: &'a Dictionary,
    ) -> impl Iterator<Item = (Tier, Option<BlockHash>, &'a [BlockHash], &'a [u64])> {
        let pieces = self.pieces.iter().map(|piece| {
            let (parent, names, contents) = dictionary.get(*piece);
            (Tier::Gpu, parent, names, contents)
        });
        let others = self.others.iter().flat_map(|chain| {
            let tiers = Tier::ALL.into_iter().zip(chain.copies);
            tiers.flat_map(move |(tier, copies)| {
                (0..copies).map(move |_| (tier, chain.parent, &chain.names[..], &chain.contents[..]))
            })
        });
        pieces.chain(others)
    }
}

impl BlockIndex {
    /// Serializes all held blocks, the configuration and the counts, in a format that is the same on every machine.
    /// Other threads may change the index meanwhile: each rank is saved as it was at one moment, but different ranks at
    /// different moments.
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

    /// Builds the index from which a snapshot was made.
    ///
    /// # Errors
    ///
    /// [`Error::Snapshot`] if the bytes are not a snapshot of an index, have another version, are incomplete
    /// or altered; [`Error::Full`] if the snapshot has more blocks than the index can number.
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

/// State of reading a snapshot: the dictionary of blocks so far, and the index under construction.
struct PartialSnapshot {
    /// Index under construction, and the counts saved with it; None before the section of kind `INDEX`.
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

/// Stores the blocks of one rank, as read from a snapshot, in the index.
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
