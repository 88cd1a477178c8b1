//! Changes, read from the bytes of a frame.

use kvatlas_codec::{Cursor, from_zigzag};
use kvatlas_index::{self as index, BlockHash, RankRef, Tier};

use super::recorder::{CHUNK, CLEAR, COPIES, KIND, KNOWN, ONCE, PARENT, REMOVE, STORE, TIER_SHIFT};
use super::{FormatError, name_of};

/// Greatest number of blocks in a change.
const MOST: u64 = 1 << 24;
/// Greatest number of copies of a block.
const MOST_COPIES: u64 = 1 << 16;

/// One change of what a rank holds.
#[derive(Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Consecutive blocks of a chain were stored.
    Store {
        /// Tier that the blocks are on.
        tier: Tier,
        /// The block before the first.
        parent: Option<BlockHash>,
        /// Names of the blocks.
        names: &'a [BlockHash],
        /// The content hash of each.
        contents: &'a [u64],
        /// True if a block that is held already gains no further copy.
        once: bool,
        /// Copies of each.
        copies: u32,
    },
    /// Blocks that are held were stored on another tier as well.
    StoreKnown {
        /// Tier that the blocks are on.
        tier: Tier,
        /// Names of the blocks.
        names: &'a [BlockHash],
    },
    /// A copy of each block was removed.
    Remove {
        /// Tier that the blocks were on.
        tier: Tier,
        /// Names of the blocks.
        names: &'a [BlockHash],
    },
    /// The rank has lost everything.
    Clear,
    /// The engine keeps this many blocks as one on a tier beyond its device.
    Chunk {
        /// The tier.
        tier: Tier,
        /// Blocks in a chunk.
        blocks: u32,
    },
}

impl Change<'_> {
    /// Makes the same change to what a rank holds.
    ///
    /// # Errors
    /// If the index can number no more.
    pub fn apply(&self, index: &mut index::Changes<'_>, rank: &impl RankRef) -> Result<(), index::Error> {
        match *self {
            Self::Store { tier, parent, names, contents, once, copies } => {
                for _ in 0..copies {
                    if once {
                        index.store_once(rank, tier, parent, names, contents)?;
                    } else {
                        index.store(rank, tier, parent, names, contents)?;
                    }
                }
            }
            Self::StoreKnown { tier, names } => {
                index.store_known(rank, tier, names);
            }
            Self::Remove { tier, names } => index.remove(rank, tier, names),
            Self::Clear => index.clear(rank.worker(), Some(rank.rank()), None),
            Self::Chunk { tier, blocks } => index.learn_chunk(rank.worker(), rank.rank(), tier, blocks),
        }
        Ok(())
    }
}

/// The head of a change, and how many blocks follow it.
struct Heading {
    kind: u8,
    /// Blocks in a chunk, if the change says that.
    chunk: Option<u32>,
    tier: Tier,
    once: bool,
    copies: u32,
    parent: Option<BlockHash>,
    blocks: u64,
}

impl Heading {
    /// `last`: the number before, from which the next one differs.
    fn read(cursor: &mut Cursor<'_>, last: &mut u64) -> Result<Self, FormatError> {
        let head = cursor.byte()?;
        let (kind, tier) = (head & KIND, Tier::ALL[usize::from(head >> TIER_SHIFT & 3)]);
        if head & CHUNK != 0 {
            let chunk = Some(cursor.small()?);
            if chunk == Some(0) || tier == Tier::Gpu {
                return Err(FormatError("a chunk has no blocks, or is of the device, which has no chunks"));
            }
            return Ok(Self { kind, chunk, tier, once: false, copies: 1, parent: None, blocks: 0 });
        }
        let copies = if head & COPIES == 0 { 1 } else { cursor.varint()? };
        if kind == CLEAR {
            *last = 0;
            return Ok(Self { kind, chunk: None, tier, once: false, copies: 1, parent: None, blocks: 0 });
        }
        if !(1..=MOST_COPIES).contains(&copies) {
            return Err(FormatError("a block has no copies, or more than there can be"));
        }
        let parent = if head & PARENT == 0 {
            None
        } else {
            *last = from_zigzag(*last, cursor.varint()?);
            Some(name_of(*last))
        };
        let blocks = cursor.varint()?;
        if blocks > MOST {
            return Err(FormatError("a change has more blocks than there can be"));
        }
        Ok(Self { kind, chunk: None, tier, once: head & ONCE != 0, copies: copies as u32, parent, blocks })
    }

    /// Reads the numbers of the blocks: each run of them as its first number, the step to the next, and its length.
    fn numbers(
        &self,
        cursor: &mut Cursor<'_>,
        last: &mut u64,
        mut run: impl FnMut(u64, u64, u64),
    ) -> Result<(), FormatError> {
        let mut left = self.blocks;
        while left > 0 {
            let said = cursor.varint()?;
            let first = from_zigzag(*last, said >> 1);
            let (length, step) = if said & 1 == 0 {
                (1, 0)
            } else {
                let said = cursor.varint()?;
                ((said >> 1).saturating_add(2), if said & 1 == 0 { 1 } else { u64::MAX })
            };
            if length > left {
                return Err(FormatError("a run of blocks is longer than their number"));
            }
            run(first, step, length);
            *last = first.wrapping_add(step.wrapping_mul(length - 1));
            left -= length;
        }
        Ok(())
    }

    /// Content hashes of a store, which follow its numbers.
    fn contents<'a>(&self, cursor: &mut Cursor<'a>) -> Result<&'a [u8], FormatError> {
        Ok(if self.kind == STORE { cursor.bytes(8 * self.blocks)? } else { &[] })
    }
}

/// Number of blocks in changes, each counted once for each of its copies. Nothing is made of them.
///
/// # Errors
/// If the bytes are wrong.
pub fn weight(bytes: &[u8]) -> Result<u64, FormatError> {
    let (mut cursor, mut last, mut weight) = (Cursor(bytes), 0, 0_u64);
    while !cursor.is_empty() {
        let head = Heading::read(&mut cursor, &mut last)?;
        if head.chunk.is_some() {
            continue;
        }
        head.numbers(&mut cursor, &mut last, |_, _, _| {})?;
        head.contents(&mut cursor)?;
        weight = weight.saturating_add(head.blocks * u64::from(head.copies));
    }
    Ok(weight)
}

/// Reads changes one after the other into the same memory.
#[derive(Debug, Default)]
pub struct Changes {
    names: Vec<BlockHash>,
    contents: Vec<u64>,
}

impl Changes {
    /// Gives each change to `change`, in order, until that fails. [`Message::check`](super::Message::check) says
    /// before whether they are right, and not of too many blocks.
    ///
    /// # Errors
    /// What `change` says, or that the bytes are wrong; then the changes before were given.
    pub fn read<E: From<FormatError>>(
        &mut self,
        bytes: &[u8],
        mut change: impl FnMut(Change<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut cursor, mut last) = (Cursor(bytes), 0);
        while !cursor.is_empty() {
            let head = Heading::read(&mut cursor, &mut last)?;
            if let Some(blocks) = head.chunk {
                change(Change::Chunk { tier: head.tier, blocks })?;
                continue;
            }
            self.names.clear();
            let names = &mut self.names;
            head.numbers(&mut cursor, &mut last, |first, step, length| {
                names.extend((0..length).map(|at| name_of(first.wrapping_add(step.wrapping_mul(at)))));
            })?;
            let Heading { kind, tier, once, copies, parent, .. } = head;
            let (bytes, names) = (head.contents(&mut cursor)?, &self.names[..]);
            match kind {
                STORE => {
                    self.contents.clear();
                    self.contents.extend(bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)));
                    change(Change::Store { tier, parent, names, contents: &self.contents, once, copies })?;
                }
                KNOWN => change(Change::StoreKnown { tier, names })?,
                CLEAR => change(Change::Clear)?,
                _ => {
                    debug_assert_eq!(kind, REMOVE);
                    change(Change::Remove { tier, names })?;
                }
            }
        }
        Ok(())
    }
}
