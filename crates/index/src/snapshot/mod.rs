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
mod held;
mod sections;
mod whole;

pub use dictionary::{Dictionary, DictionaryWriter, Entry, Piece};
pub use held::SavedBlocks;
pub use sections::{Section, SectionWriter, Sections, kind};
