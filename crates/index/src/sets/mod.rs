//! Sets of holders: one word each, and each set once.
//!
//! A word has the members in it or leads to them (`raw/set.rs`). A set that a word leads to is shared by all who mean
//! it: it is found by the xor of its members' random words (Zobrist 1970), so that "this set and one more" is one
//! look-up. Equal sets have equal words, always.

mod members;
mod table;

pub(crate) use members::{Bits, NumberSet, OwnedMembers};
pub(crate) use table::Sets;
