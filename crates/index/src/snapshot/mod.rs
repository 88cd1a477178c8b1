//! Snapshots: the format in which blocks and their holders are kept, over a restart or on the way to another process.
//!
//! ```text
//! "KVASNAP\0"  version u32
//! sections:    kind u8, length u64, payload, XXH3-64 (of the XXH3-64 of kind and length, and that of the payload)
//!
//! 1 head       JSON: when, by which version, an identifier
//! 2 keyspace   JSON: model, routing group, block size; what follows is of this one
//! 3 blocks     part of the dictionary: for each chain, its blocks * 2 + whether it has a parent, varint, and the
//!              parent u64; then all names, then all content hashes, u64 each
//! 4 stream     head in JSON (its length before it), then for each rank: what it holds, salted blocks, blocks known from
//!              answers
//! 5 end        how many sections came before it, varint
//! 6 index      block size, count copies, counters, varints; what follows is of this one
//! 7 rank       worker (text), rank (varint), what it holds
//! ```
//!
//! A service's snapshot has the sections 1 to 5; a [`BlockIndex`](crate::BlockIndex) by itself writes 6, 3, 7 and 5.
//!
//! The blocks of a rank are pieces of the dictionary's chains, which it has once each on the device, then other blocks with
//! their copies on each tier. Blocks that several ranks hold under the same names are in the dictionary once. Two hashes
//! of 64 bits that know nothing of each other are 16 bytes, however they are packed; what a rank holds of a chain takes 2
//! to 6 bytes.
//!
//! To change the layout: give the version the next number, write it so, and read both. JSON may get more fields without
//! that. Sections of kinds from 128 on are left out by who does not know them.

mod dictionary;
mod sections;
mod whole;

use kvatlas_codec::{Cursor, from_zigzag, put_varint, put_words, zigzag};

use crate::copied::{RankCopy, UniformChain};
use crate::types::{BlockHash, Tier};

pub use self::dictionary::{Dictionary, DictionaryWriter, Entry, Piece};
pub use self::sections::{Section, SectionWriter, Sections, kind};

/// Copies of a block on all tiers at most.
const MOST_COPIES: u64 = 1 << 16;

/// A rank's blocks, out of a snapshot.
#[derive(Debug, Default)]
pub struct SavedBlocks {
    /// Blocks with one copy on the device.
    pub pieces: Vec<Piece>,
    /// All others.
    pub others: Vec<UniformChain>,
}

impl DictionaryWriter {
    /// Writes what a rank holds. Returns the number of blocks: names on the device and names elsewhere. `elsewhere`: its
    /// runs are of another index than those of the other ranks.
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
    /// Reads what a rank holds.
    ///
    /// # Errors
    /// Words for what is wrong with it.
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

    /// Blocks held: names on the device and names elsewhere.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        let pieces = self.pieces.iter().map(|piece| piece.blocks as u64).sum::<u64>();
        pieces + self.others.iter().map(|chain| chain.names.len() as u64).sum::<u64>()
    }

    /// Blocks held, each counted once for each of its copies.
    #[must_use]
    pub fn copies(&self) -> u64 {
        let pieces = self.pieces.iter().map(|piece| piece.blocks as u64).sum::<u64>();
        let of = |chain: &UniformChain| {
            chain.names.len() as u64 * chain.copies.iter().map(|copies| u64::from(*copies)).sum::<u64>()
        };
        pieces + self.others.iter().map(of).sum::<u64>()
    }

    /// Tier, parent, names and content hashes of all that is to be stored, in order.
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
