//! Names of blocks as engines send them.

use kvatlas_index::BlockHash;

/// An engine's name of a block, in the form it was sent in.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Name {
    /// An integer of 0 or more.
    Unsigned(u64),
    /// An integer below 0. Made by [`Name::from`], so that every integer has one form.
    Signed(i64),
    /// A raw digest.
    Bytes(Box<[u8]>),
}

impl Name {
    /// The form that the index knows the block by.
    #[must_use]
    #[inline]
    pub fn canonical(&self) -> BlockHash {
        match self {
            Self::Unsigned(name) => BlockHash(*name),
            Self::Signed(name) => BlockHash::from_i64(*name),
            Self::Bytes(name) => BlockHash::from_bytes(name),
        }
    }
}

impl From<u64> for Name {
    fn from(name: u64) -> Self {
        Self::Unsigned(name)
    }
}

impl From<i64> for Name {
    fn from(name: i64) -> Self {
        u64::try_from(name).map_or(Self::Signed(name), Self::Unsigned)
    }
}

impl From<&[u8]> for Name {
    fn from(name: &[u8]) -> Self {
        Self::Bytes(name.into())
    }
}
