//! What changed, read.

use kvatlas_index::{self as index, BlockHash, Tier};

use super::recorder::{CLEAR, COPIES, KIND, KNOWN, ONCE, PARENT, REMOVE, STORE, TIER_SHIFT};
use super::varint::{Cursor, from_zigzag};
use super::{Malformed, name_of};

/// Blocks in one change at most.
const MOST: u64 = 1 << 24;
/// Copies of one block at most.
const MOST_COPIES: u64 = 1 << 16;

/// One change of what a rank holds.
#[derive(Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Consecutive blocks of a chain were stored.
    Store {
        /// Where.
        tier: Tier,
        /// The block before the first.
        parent: Option<BlockHash>,
        /// Their names.
        names: &'a [BlockHash],
        /// The content hash of each.
        contents: &'a [u64],
        /// Whether a block that is held already has no other copy now.
        once: bool,
        /// Copies of each.
        copies: u32,
    },
    /// Blocks that are held were stored on another tier as well.
    StoreKnown {
        /// Where.
        tier: Tier,
        /// Their names.
        names: &'a [BlockHash],
    },
    /// A copy of each block was removed.
    Remove {
        /// Where from.
        tier: Tier,
        /// Their names.
        names: &'a [BlockHash],
    },
    /// The rank has lost everything.
    Clear,
}

impl Change<'_> {
    /// Makes the same change to what `rank` of `worker` holds.
    ///
    /// # Errors
    /// If the index can number no more.
    pub fn apply(&self, index: &mut index::Changes<'_>, worker: &str, rank: u32) -> Result<(), index::Error> {
        match *self {
            Self::Store { tier, parent, names, contents, once, copies } => {
                let store = if once { index::Changes::store_once } else { index::Changes::store };
                for _ in 0..copies {
                    store(index, worker, rank, tier, parent, names, contents)?;
                }
            }
            Self::StoreKnown { tier, names } => {
                index.store_known(worker, rank, tier, names);
            }
            Self::Remove { tier, names } => index.remove(worker, rank, tier, names),
            Self::Clear => index.clear(worker, Some(rank), None),
        }
        Ok(())
    }
}

/// Reads changes one after the other into the same memory.
#[derive(Debug, Default)]
pub struct Changes {
    names: Vec<BlockHash>,
    contents: Vec<u64>,
}

impl Changes {
    /// Gives each change to `change`, in order, until that fails.
    ///
    /// # Errors
    /// What `change` says, or that the bytes are wrong; then the changes before were given.
    pub fn read<E: From<Malformed>>(
        &mut self,
        bytes: &[u8],
        mut change: impl FnMut(Change<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut cursor, mut last) = (Cursor(bytes), 0);
        while !cursor.is_empty() {
            let head = cursor.byte()?;
            let tier = Tier::ALL[usize::from(head >> TIER_SHIFT & 3)];
            let copies = if head & COPIES == 0 { 1 } else { cursor.number()? };
            let kind = head & KIND;
            if kind == CLEAR {
                last = 0;
                change(Change::Clear)?;
                continue;
            }
            if !(1..=MOST_COPIES).contains(&copies) {
                return Err(Malformed("a block has no copies, or more than there can be").into());
            }
            let parent = if head & PARENT == 0 {
                None
            } else {
                last = from_zigzag(last, cursor.number()?);
                Some(name_of(last))
            };
            self.numbers(&mut cursor, &mut last)?;
            let names = &self.names[..];
            match kind {
                STORE => {
                    let bytes = cursor.bytes(8 * names.len() as u64)?;
                    self.contents.clear();
                    self.contents.extend(bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)));
                    let (contents, once) = (&self.contents[..], head & ONCE != 0);
                    change(Change::Store { tier, parent, names, contents, once, copies: copies as u32 })?;
                }
                KNOWN => change(Change::StoreKnown { tier, names })?,
                _ => {
                    debug_assert_eq!(kind, REMOVE);
                    change(Change::Remove { tier, names })?;
                }
            }
        }
        Ok(())
    }

    fn numbers(&mut self, cursor: &mut Cursor<'_>, last: &mut u64) -> Result<(), Malformed> {
        let count = cursor.number()?;
        if count > MOST {
            return Err(Malformed("a change has more blocks than there can be"));
        }
        self.names.clear();
        let mut left = count;
        while left > 0 {
            let first = cursor.number()?;
            *last = from_zigzag(*last, first >> 1);
            self.names.push(name_of(*last));
            left -= 1;
            if first & 1 == 1 {
                let run = cursor.number()?;
                let (more, step) = ((run >> 1) + 1, if run & 1 == 0 { 1 } else { u64::MAX });
                if more > left {
                    return Err(Malformed("a run of blocks is longer than their number"));
                }
                for _ in 0..more {
                    *last = last.wrapping_add(step);
                    self.names.push(name_of(*last));
                }
                left -= more;
            }
        }
        Ok(())
    }
}
