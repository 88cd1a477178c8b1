//! A snapshot as bytes.
//!
//! ```text
//! "KVASNAP\0"  version u32
//! sections:    kind u8, length u64, payload, XXH3-64 (of the XXH3-64 of kind and length, and that of the payload)
//!
//! 1 head       JSON: when, by which version, an identifier
//! 2 keyspace   JSON: model, routing group, block size; what follows is of this one
//! 3 blocks     part of the dictionary: for each chain, its blocks * 2 + whether it has a parent, varint, and the
//!              parent u64; then all names, then all content hashes, u64 each
//! 4 stream     head in JSON (its length before it), then for each rank: what it holds of the dictionary, other blocks,
//!              salted blocks, blocks known from answers
//! 5 end        how many sections came before it, varint
//! ```
//!
//! Blocks that several ranks hold under the same names are in the dictionary once. Two hashes of 64 bits that know nothing
//! of each other are 16 bytes, however they are packed; what a rank holds of a chain takes 2 to 6 bytes.
//!
//! To change the layout: give the version the next number, write it so, and let `decode.rs` read both. JSON may get more
//! fields without that. Sections of kinds from 128 on are left out by who does not know them.

use std::io::{self, Write};

use hashbrown::HashMap;
use kvatlas_index::{BlockHash, CopiedBlock, CopiedChain};
use serde::{Deserialize, Serialize};

use super::bytes::{frame, hashes, numbers, text, varint};
use super::saved::{RankBlocks, StreamCopy};

pub(super) const MAGIC: [u8; 8] = *b"KVASNAP\0";
pub(super) const VERSION: u32 = 1;

pub(super) const HEAD: u8 = 1;
pub(super) const KEYSPACE: u8 = 2;
pub(super) const BLOCKS: u8 = 3;
pub(super) const STREAM: u8 = 4;
pub(super) const END: u8 = 5;

/// Blocks in a section of the dictionary, about.
const BLOCKS_A_SECTION: usize = 1 << 18;
/// Chains of the dictionary that may be meant by one run: more are of engines that name blocks of their own.
const MOST_ALIKE: usize = 4;

/// What a snapshot says of itself.
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

/// What went into a snapshot.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Written {
    pub(crate) bytes: u64,
    pub(crate) streams: u64,
    /// Blocks held, by each rank.
    pub(crate) blocks: u64,
    /// Different blocks of all dictionaries.
    pub(crate) distinct: u64,
    /// How far a log was read, by the stream that came least far; none if no stream came by one.
    pub(crate) sequence: Option<u64>,
}

/// Writes a snapshot.
pub(crate) struct Encoder<W> {
    out: W,
    sections: u64,
    pub(crate) written: Written,
}

impl<W: Write> Encoder<W> {
    pub(crate) fn new(mut out: W, head: &Head) -> io::Result<Self> {
        out.write_all(&MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        let bytes = (MAGIC.len() + 4) as u64;
        let mut encoder = Self { out, sections: 0, written: Written { bytes, ..Written::default() } };
        encoder.section(HEAD, &json(head)?)?;
        Ok(encoder)
    }

    fn section(&mut self, kind: u8, payload: &[u8]) -> io::Result<()> {
        let (before, after) = frame(kind, payload);
        self.out.write_all(&before)?;
        self.out.write_all(payload)?;
        self.out.write_all(&after)?;
        self.sections += 1;
        self.written.bytes += (before.len() + payload.len() + after.len()) as u64;
        Ok(())
    }

    /// Writes a keyspace.
    pub(crate) fn keyspace(
        &mut self,
        model: &str,
        routing_group: &str,
        block_size: u32,
        keyspace: &KeyspaceCopy,
    ) -> io::Result<()> {
        let (model, routing_group) = (model.to_owned(), routing_group.to_owned());
        self.section(KEYSPACE, &json(&KeyspaceHead { model, routing_group, block_size })?)?;
        let mut rest = &keyspace.entries[..];
        while !rest.is_empty() {
            let mut blocks = 0;
            let part = rest.iter().take_while(|entry| {
                let first = blocks == 0;
                blocks += entry.names.len();
                first || blocks <= BLOCKS_A_SECTION
            });
            let (part, others) = rest.split_at(part.count());
            self.section(BLOCKS, &blocks_payload(part))?;
            rest = others;
        }
        for stream in &keyspace.streams {
            self.section(STREAM, stream)?;
        }
        self.written.streams += keyspace.streams.len() as u64;
        self.written.blocks += keyspace.blocks;
        self.written.sequence = [self.written.sequence, keyspace.sequence].into_iter().flatten().min();
        self.written.distinct += keyspace.entries.iter().map(|entry| entry.names.len() as u64).sum::<u64>();
        Ok(())
    }

    /// Writes the end.
    pub(crate) fn end(mut self) -> io::Result<(W, Written)> {
        let mut payload = Vec::new();
        varint(&mut payload, self.sections);
        self.section(END, &payload)?;
        Ok((self.out, self.written))
    }
}

fn json(it: &impl Serialize) -> io::Result<Vec<u8>> {
    serde_json::to_vec(it).map_err(io::Error::other)
}

fn blocks_payload(entries: &[NewEntry]) -> Vec<u8> {
    let blocks: usize = entries.iter().map(|entry| entry.names.len()).sum();
    let mut out = Vec::with_capacity(16 * blocks + 12 * entries.len() + 16);
    varint(&mut out, entries.len() as u64);
    for NewEntry { parent, names, .. } in entries {
        varint(&mut out, (names.len() as u64) << 1 | u64::from(parent.is_some()));
        numbers(&mut out, parent.map(|parent| parent.0).as_slice());
    }
    entries.iter().for_each(|entry| hashes(&mut out, &entry.names));
    entries.iter().for_each(|entry| numbers(&mut out, &entry.contents));
    out
}

/// A chain of the dictionary that is being made.
struct NewEntry {
    parent: Option<BlockHash>,
    names: Vec<BlockHash>,
    contents: Vec<u64>,
}

/// A keyspace's streams, encoded but for the dictionary, which comes before them in the file and is complete after the
/// last of them: until then it is in memory, 16 bytes a block.
#[derive(Default)]
pub(crate) struct KeyspaceCopy {
    entries: Vec<NewEntry>,
    /// The entries that were made of what the index keeps as a run.
    by_run: HashMap<(bool, u32), Vec<usize>>,
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
        varint(&mut out, head.len() as u64);
        out.extend(head);
        for rank in stream.ranks {
            self.rank(&mut out, rank, elsewhere);
        }
        self.streams.push(out);
        Ok(())
    }

    fn rank(&mut self, out: &mut Vec<u8>, rank: RankBlocks, elsewhere: bool) {
        let pieces = rank.chains.iter().map(|chain| chain.plain.len() as u64).sum();
        varint(out, pieces);
        let mut last = 0;
        for mut chain in rank.chains {
            let plain = std::mem::take(&mut chain.plain);
            let entry = self.entry(chain, elsewhere);
            for part in plain {
                // Usually the next one, from its beginning.
                let step = (entry as i64).wrapping_sub(last as i64);
                varint(out, (step << 1 ^ step >> 63) as u64);
                varint(out, (part.len() as u64) << 1 | u64::from(part.start > 0));
                if part.start > 0 {
                    varint(out, part.start as u64);
                }
                self.blocks += part.len() as u64;
                last = entry;
            }
        }
        self.blocks += rank.blocks.len() as u64;
        let odd = chained(&rank.blocks);
        varint(out, odd.len() as u64);
        for chain in odd {
            let CopiedBlock { parent, copies, .. } = rank.blocks[chain[0]];
            out.push(u8::from(parent.is_some()));
            numbers(out, parent.map(|parent| parent.0).as_slice());
            copies.iter().for_each(|copies| varint(out, (*copies).into()));
            varint(out, chain.len() as u64);
            chain.iter().for_each(|at| hashes(out, &[rank.blocks[*at].name]));
            chain.iter().for_each(|at| numbers(out, &[rank.blocks[*at].content]));
        }
        let mut salts: Vec<&str> = rank.salts.iter().map(|block| &*block.salt).collect();
        salts.sort_unstable();
        salts.dedup();
        varint(out, salts.len() as u64);
        salts.iter().for_each(|salt| text(out, salt));
        varint(out, rank.salts.len() as u64);
        for block in &rank.salts {
            hashes(out, &[block.name]);
            varint(out, salts.binary_search(&&*block.salt).unwrap_or_default() as u64);
            block.copies.iter().for_each(|copies| varint(out, (*copies).into()));
        }
        varint(out, rank.answered.len() as u64);
        hashes(out, &rank.answered);
    }

    /// The entry that a chain is the beginning of, or becomes.
    fn entry(&mut self, chain: CopiedChain, elsewhere: bool) -> usize {
        let CopiedChain { run, parent, names, contents, .. } = chain;
        let alike = self.by_run.entry((elsewhere, run)).or_default();
        for &at in alike.iter() {
            let entry = &mut self.entries[at];
            let both = entry.names.len().min(names.len());
            if entry.parent == parent
                && entry.names[..both] == names[..both]
                && entry.contents[..both] == contents[..both]
            {
                entry.names.extend_from_slice(&names[both..]);
                entry.contents.extend_from_slice(&contents[both..]);
                return at;
            }
        }
        let at = self.entries.len();
        self.entries.push(NewEntry { parent, names, contents });
        if alike.len() >= MOST_ALIKE {
            alike.remove(0);
        }
        alike.push(at);
        at
    }
}

/// Blocks in chains, as far as one continues another and has as many copies: lists of their places.
fn chained(blocks: &[CopiedBlock]) -> Vec<Vec<usize>> {
    // Those on the device and those elsewhere apart: a name may be in both.
    let is_on_device = |block: &CopiedBlock| block.copies[0] > 0;
    let places: HashMap<(BlockHash, bool), usize> =
        blocks.iter().enumerate().map(|(at, block)| ((block.name, is_on_device(block)), at)).collect();
    let mut next = vec![None; blocks.len()];
    let mut continues = vec![false; blocks.len()];
    for (at, block) in blocks.iter().enumerate() {
        let before = block.parent.and_then(|parent| places.get(&(parent, is_on_device(block))));
        if let Some(&before) = before
            && before != at
            && blocks[before].copies == block.copies
            && next[before].is_none()
        {
            (next[before], continues[at]) = (Some(at), true);
        }
    }
    let mut done = vec![false; blocks.len()];
    let mut chains = Vec::new();
    // Then what goes in a circle, which has no beginning.
    let starts = (0..blocks.len()).filter(|at| !continues[*at]).chain(0..blocks.len());
    for start in starts {
        let mut chain = Vec::new();
        let mut at = Some(start);
        while let Some(here) = at.filter(|at| !done[*at]) {
            done[here] = true;
            chain.push(here);
            at = next[here];
        }
        if !chain.is_empty() {
            chains.push(chain);
        }
    }
    // Those on the device first, as they say what their names mean.
    chains.sort_by_key(|chain| !is_on_device(&blocks[chain[0]]));
    chains
}
