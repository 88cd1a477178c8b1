//! A rank's blocks in a snapshot: pieces of the dictionary, and blocks with other numbers of copies.

use kvatlas_codec::{Cursor, from_zigzag, put_varint, put_words, zigzag};

use super::dictionary::{Dictionary, DictionaryWriter, Piece};
use crate::copied::{RankCopy, UniformChain};
use crate::types::{BlockHash, Tier};

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
