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

/// Type that names of blocks are read as: [`Name`]s keep the form that they were sent in, [`BlockHash`]es are what the
/// index wants.
pub trait BlockName: Sized {
    /// An integer of 0 or more.
    fn unsigned(name: u64) -> Self;
    /// An integer below 0.
    fn signed(name: i64) -> Self;
    /// A raw digest.
    fn digest(name: &[u8]) -> Self;
    /// The form that the index knows the block by.
    fn block_hash(&self) -> BlockHash;
    /// Returns the hashes of many names; `room` is for those that have to be made.
    fn block_hashes<'a>(names: &'a [Self], room: &'a mut Vec<BlockHash>) -> &'a [BlockHash];
}

impl BlockName for Name {
    fn unsigned(name: u64) -> Self {
        Self::Unsigned(name)
    }
    fn signed(name: i64) -> Self {
        Self::Signed(name)
    }
    fn digest(name: &[u8]) -> Self {
        Self::from(name)
    }
    fn block_hash(&self) -> BlockHash {
        self.canonical()
    }
    fn block_hashes<'a>(names: &'a [Self], room: &'a mut Vec<BlockHash>) -> &'a [BlockHash] {
        room.clear();
        room.extend(names.iter().map(Self::canonical));
        room
    }
}

impl BlockName for BlockHash {
    fn unsigned(name: u64) -> Self {
        Self(name)
    }
    fn signed(name: i64) -> Self {
        Self::from_i64(name)
    }
    fn digest(name: &[u8]) -> Self {
        Self::from_bytes(name)
    }
    fn block_hash(&self) -> BlockHash {
        *self
    }
    fn block_hashes<'a>(names: &'a [Self], _: &'a mut Vec<BlockHash>) -> &'a [BlockHash] {
        names
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
