//! An index as bytes, and the index that the bytes were made of.
//!
//! ```text
//! "KVAINDEX"  version u32
//! block size, count copies, counters            varints
//! sections                                      varint: how many, then each
//!   worker (length, UTF-8), rank, stores        varints
//!     tier and whether there is a parent        one byte
//!     parent                                    u64, if there is one
//!     blocks                                    varint, then so many names and so many content hashes, u64 each
//! XXH3-64 of all that                           u64
//! ```
//!
//! Numbers of fixed width are little endian; varints have seven bits in a byte, the lowest first, and the highest bit
//! of every byte but the last is set. A section without stores is a rank that is known and holds nothing.

use xxhash_rust::xxh3::xxh3_64;

use crate::error::Error;
use crate::index::{BlockIndex, Config};
use crate::stats::Counters;
use crate::types::{BlockHash, Event, Tier};

const MAGIC: [u8; 8] = *b"KVAINDEX";
const VERSION: u32 = 1;
const CHECKSUM: usize = 8;
/// The bit of a store's first byte that says that a parent follows; below it is the tier.
const HAS_PARENT: u8 = 4;

impl BlockIndex {
    /// Everything held, the configuration and the counts so far, as bytes. The same on every machine.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        let (mut ranks, dump, counters) = self.write(|writer| (writer.ranks(), writer.dump(), writer.counters));
        ranks.sort_unstable_by(|a, b| (&a.worker, a.rank).cmp(&(&b.worker, b.rank)));
        ranks.retain(|rank| rank.device_blocks + rank.offloaded_blocks == 0);
        let sections = || dump.chunk_by(|one, next| place(one) == place(next));
        let mut out = MAGIC.to_vec();
        out.extend(VERSION.to_le_bytes());
        let Config { block_size, count_copies } = self.config();
        varint(&mut out, block_size.into());
        varint(&mut out, count_copies.into());
        let Counters { stores, removes, clears, drops, replaced, unknown_removals, private_holders: _ } = counters;
        for count in [stores, removes, clears, drops, replaced, unknown_removals] {
            varint(&mut out, count);
        }
        varint(&mut out, (ranks.len() + sections().count()) as u64);
        for rank in &ranks {
            section(&mut out, &rank.worker, rank.rank, &[]);
        }
        for stores in sections() {
            let (worker, rank) = place(&stores[0]);
            section(&mut out, worker, rank, stores);
        }
        let sum = xxh3_64(&out);
        out.extend(sum.to_le_bytes());
        out
    }

    /// The index that a snapshot was made of.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if the bytes are no snapshot, of another version, cut off or altered, [`Error::Full`] if
    /// there is too much in it.
    pub fn from_snapshot(snapshot: &[u8]) -> Result<Self, Error> {
        let Some((head, rest)) = snapshot.split_first_chunk::<{ MAGIC.len() + 4 }>() else {
            return Err(wrong("too short"));
        };
        let (magic, version) = head.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(wrong("it does not begin as one"));
        }
        let version = version.iter().rev().fold(0, |all, &byte| all << 8 | u32::from(byte));
        if version != VERSION {
            return Err(wrong(&format!("it is of version {version}, and this reads version {VERSION}")));
        }
        let Some((body, sum)) = rest.split_last_chunk::<CHECKSUM>() else {
            return Err(wrong("too short"));
        };
        if u64::from_le_bytes(*sum) != xxh3_64(&snapshot[..snapshot.len() - CHECKSUM]) {
            return Err(wrong("it was cut off or altered: its checksum does not match"));
        }
        let mut source = Source(body);
        let (block_size, count_copies) = (source.varint_u32()?, source.varint()? != 0);
        let index = Self::new(Config { block_size, count_copies }).map_err(|error| wrong(&error.to_string()))?;
        let mut counts = [0; 6];
        for count in &mut counts {
            *count = source.varint()?;
        }
        for _ in 0..source.varint()? {
            source.section(&index)?;
        }
        if !source.0.is_empty() {
            return Err(wrong("there is more in it than it says"));
        }
        let [stores, removes, clears, drops, replaced, unknown_removals] = counts;
        index.write(|writer| {
            let private_holders = writer.counters.private_holders;
            writer.counters = Counters { stores, removes, clears, drops, replaced, unknown_removals, private_holders };
        });
        Ok(index)
    }
}

fn wrong(what: &str) -> Error {
    Error::Snapshot { what: what.to_owned() }
}

/// Whose a store is.
fn place(event: &Event) -> (&str, u32) {
    match event {
        Event::Store { worker, rank, .. } | Event::Remove { worker, rank, .. } => (worker, *rank),
        Event::Clear { worker, .. } | Event::Drop { worker } => (worker, 0),
    }
}

fn section(out: &mut Vec<u8>, worker: &str, rank: u32, stores: &[Event]) {
    varint(out, worker.len() as u64);
    out.extend(worker.as_bytes());
    varint(out, rank.into());
    varint(out, stores.len() as u64);
    for event in stores {
        // A dump is stores and nothing else.
        let Event::Store { tier, parent, block_hashes, content_hashes, .. } = event else { continue };
        out.push(*tier as u8 | if parent.is_some() { HAS_PARENT } else { 0 });
        out.extend(parent.iter().flat_map(|parent| parent.0.to_le_bytes()));
        varint(out, block_hashes.len() as u64);
        out.extend(block_hashes.iter().flat_map(|name| name.0.to_le_bytes()));
        out.extend(content_hashes.iter().flat_map(|content| content.to_le_bytes()));
    }
}

fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// What is left to read.
struct Source<'a>(&'a [u8]);

impl<'a> Source<'a> {
    fn take(&mut self, bytes: u64) -> Result<&'a [u8], Error> {
        let taken = usize::try_from(bytes).ok().and_then(|bytes| self.0.split_at_checked(bytes));
        let (taken, rest) = taken.ok_or_else(|| wrong("it ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Error> {
        self.take(1).map(|byte| byte[0])
    }

    fn varint(&mut self) -> Result<u64, Error> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(wrong("a number in it is too great"))
    }

    fn varint_u32(&mut self) -> Result<u32, Error> {
        self.varint()?.try_into().map_err(|_| wrong("a number in it is too great"))
    }

    /// So many numbers of 64 bits. What is not there is not allocated.
    fn numbers<T>(&mut self, count: u64, from: impl Fn(u64) -> T) -> Result<Vec<T>, Error> {
        let bytes = count.checked_mul(8).ok_or_else(|| wrong("a number in it is too great"))?;
        let (numbers, _) = self.take(bytes)?.as_chunks();
        Ok(numbers.iter().map(|&number| from(u64::from_le_bytes(number))).collect())
    }

    /// Puts what one rank holds into the index.
    fn section(&mut self, index: &BlockIndex) -> Result<(), Error> {
        let length = self.varint()?;
        let worker = std::str::from_utf8(self.take(length)?).map_err(|_| wrong("a name in it is not UTF-8"))?;
        let (rank, stores) = (self.varint_u32()?, self.varint()?);
        if stores == 0 {
            // A rank becomes known by its first block, and stays so without it.
            index.store(worker, rank, Tier::Gpu, None, &[BlockHash(0)], &[0])?;
            index.clear(worker, Some(rank), None);
        }
        for _ in 0..stores {
            let kind = self.byte()?;
            let tier = Tier::ALL.get(usize::from(kind & !HAS_PARENT)).ok_or_else(|| wrong("a tier is unknown"))?;
            let parent = match kind & HAS_PARENT {
                0 => None,
                _ => self.numbers(1, BlockHash)?.pop(),
            };
            let blocks = self.varint()?;
            let (names, contents) = (self.numbers(blocks, BlockHash)?, self.numbers(blocks, |content| content)?);
            index.store(worker, rank, *tier, parent, &names, &contents)?;
        }
        Ok(())
    }
}
