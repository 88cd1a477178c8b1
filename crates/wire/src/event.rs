//! A batch and its events as values, with block names and media as engines send them.

use std::borrow::Cow;

use kvatlas_index::{BlockHash, Tier};

use crate::error::RefusedEvent;
use crate::keys::Key;

/// A batch with block names in the form in which they were sent.
pub type Batch = BatchOf<Name>;
/// An event with block names in the form in which they were sent.
pub type Event = EventOf<Name>;
/// A store event with block names in the form in which they were sent.
pub type Stored = StoredOf<Name>;
/// A removal event with block names in the form in which they were sent.
pub type Removed = RemovedOf<Name>;

/// Batch that an engine publishes at once: the events of one step, in order. `N`: type of block names.
#[derive(Clone, PartialEq, Debug)]
pub struct BatchOf<N> {
    /// The engine's timestamp in seconds, as sent, by whatever clock the engine uses.
    pub timestamp: f64,
    /// Data-parallel rank that the engine names; `None` if it names none.
    pub rank: Option<u32>,
    /// Events of the batch that could be decoded, in order.
    pub events: Vec<EventOf<N>>,
    /// Events of the batch that could not be decoded.
    pub refused: Vec<RefusedEvent>,
}

/// One event of an engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EventOf<N> {
    /// Blocks were cached. Boxed, because this variant is many times as large as the others.
    Stored(Box<StoredOf<N>>),
    /// Blocks were evicted.
    Removed(RemovedOf<N>),
    /// All blocks were evicted at once.
    Cleared(Cleared),
}

// Not derived: names themselves have no default.

impl<N> Default for BatchOf<N> {
    fn default() -> Self {
        Self { timestamp: 0.0, rank: None, events: Vec::new(), refused: Vec::new() }
    }
}

impl<N> Default for StoredOf<N> {
    fn default() -> Self {
        Self {
            block_hashes: Vec::new(),
            parent: None,
            tokens: Vec::new(),
            bigrams: None,
            block_size: 0,
            medium: None,
            lora: None,
            lora_id: None,
            salt: None,
            bare: false,
            extra_keys: Vec::new(),
            adapter_digest: None,
            reused: false,
            group: None,
            kind: None,
            window: None,
            locality: None,
            ownership: None,
            session_id: None,
            lookahead: None,
        }
    }
}

impl<N> Default for RemovedOf<N> {
    fn default() -> Self {
        Self { block_hashes: Vec::new(), medium: None, group: None, locality: None, ownership: None }
    }
}

impl<N> From<StoredOf<N>> for EventOf<N> {
    fn from(stored: StoredOf<N>) -> Self {
        Self::Stored(Box::new(stored))
    }
}

impl<N> From<RemovedOf<N>> for EventOf<N> {
    fn from(removed: RemovedOf<N>) -> Self {
        Self::Removed(removed)
    }
}

impl<N> From<Cleared> for EventOf<N> {
    fn from(cleared: Cleared) -> Self {
        Self::Cleared(cleared)
    }
}

/// Store event: consecutive blocks of one chain were cached, one copy of each, unless they were hit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredOf<N> {
    /// The engine's names of the blocks, parents first. May be empty.
    pub block_hashes: Vec<N>,
    /// Name of the block before the first; `None` at the start of a prompt.
    pub parent: Option<N>,
    /// Tokens of the blocks; of bigrams, the first token of each.
    pub tokens: Vec<u32>,
    /// Second token of each bigram, where an engine with speculative decoding sends pairs; else `None`.
    pub bigrams: Option<Vec<u32>>,
    /// Number of tokens in a block; 0 where blocks are announced by name alone.
    pub block_size: u32,
    /// Medium that the blocks are on, as sent; `None` for device memory.
    pub medium: Option<Cow<'static, str>>,
    /// Name of the LoRA adapter; `None` without one.
    pub lora: Option<Box<str>>,
    /// The engine's own number of the LoRA adapter, deprecated where there are names.
    pub lora_id: Option<i64>,
    /// Cache salt, if the event has it. vLLM publishes it on the first block of a prompt only.
    pub salt: Option<Box<str>>,
    /// True if the form of the event has no place for a salt and other keys, as with the first engines that published
    /// events. Then it is unknown whether the blocks have any.
    pub bare: bool,
    /// Keys that belong to the blocks' contents besides tokens, LoRA and salt: (position of the block in this event,
    /// key), in the order of the blocks.
    pub extra_keys: Vec<(u32, Key)>,
    /// Digest of the adapter's weights, by which an engine distinguishes adapters of one name; `None` if not published.
    pub adapter_digest: Option<AdapterDigest>,
    /// True if the blocks were hit, not written: the engine has no more copies of them than before.
    pub reused: bool,
    /// Number of the cache group; `None` if the event names none.
    pub group: Option<u32>,
    /// Kind of attention that the cache group serves.
    pub kind: Option<Cow<'static, str>>,
    /// Window of a sliding-window group, in tokens.
    pub window: Option<u64>,
    /// Host of an offloaded block: `LOCAL` for the engine's own, or `REMOTE`.
    pub locality: Option<Box<str>>,
    /// Secondary offload tier that has the blocks.
    pub ownership: Option<Box<str>>,
    /// Session whose request stored the blocks, which does not affect their contents.
    pub session_id: Option<Box<str>>,
    /// Tokens after each block, if the engine's block names depend on them.
    pub lookahead: Option<Vec<Vec<u32>>>,
}

/// Digest of an adapter's weights, found among the extra keys of a store event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdapterDigest {
    /// Digest as sent.
    pub text: Box<str>,
    /// False if the string may as well be a cache salt: it looks like a digest, and nothing in the event decides.
    pub is_sure: bool,
}

/// Removal event: blocks were evicted, one copy of each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemovedOf<N> {
    /// The engine's names of the blocks, in any order.
    pub block_hashes: Vec<N>,
    /// Medium that the blocks were on, as sent; `None` for device memory.
    pub medium: Option<Cow<'static, str>>,
    /// Number of the cache group; `None` if the event names none.
    pub group: Option<u32>,
    /// Host that an offloaded block was on: `LOCAL` for the engine's own, or `REMOTE`.
    pub locality: Option<Box<str>>,
    /// Secondary offload tier that had the blocks.
    pub ownership: Option<Box<str>>,
}

/// Clear event: a rank has lost all blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cleared;

impl<N> StoredOf<N> {
    /// Tier that the blocks are on.
    #[must_use]
    pub fn tier(&self) -> Tier {
        tier(self.medium.as_deref(), self.locality.as_deref())
    }

    /// Name of the LoRA adapter in the index: the adapter's own, or `lora-id:3` where an engine only has numbers;
    /// `None` without an adapter.
    ///
    /// Numbers are the engine's own, so these blocks are found by a query with the number, never by a name and never
    /// without one. Engines count adapters from 1; 0 is none.
    #[must_use]
    pub fn adapter(&self) -> Option<Cow<'_, str>> {
        match (self.lora.as_deref(), self.lora_id) {
            (Some(name), _) if !name.is_empty() => Some(Cow::Borrowed(name)),
            (_, Some(number)) if number != 0 => Some(Cow::Owned(format!("lora-id:{number}"))),
            _ => None,
        }
    }
}

impl<N> RemovedOf<N> {
    /// Tier that the blocks were on.
    #[must_use]
    pub fn tier(&self) -> Tier {
        tier(self.medium.as_deref(), self.locality.as_deref())
    }
}

/// Media of engines and connectors, in lower case, with their tiers. Any other medium counts as external: a block in an
/// unknown place must not count as in device memory, nor as loadable by the engine's host alone.
const MEDIA: [(&str, Tier); 17] = [
    ("gpu", Tier::Gpu),
    ("", Tier::Gpu),
    ("device", Tier::Gpu),
    ("cpu", Tier::Cpu),
    ("cpu_pinned", Tier::Cpu),
    ("cpu_tier1", Tier::Cpu),
    ("host", Tier::Cpu),
    ("localcpubackend", Tier::Cpu),
    ("disk", Tier::Disk),
    ("storage", Tier::Disk),
    ("nvme", Tier::Disk),
    ("cpu_tier2", Tier::Disk),
    ("localdiskbackend", Tier::Disk),
    ("gdsbackend", Tier::Disk),
    ("external", Tier::External),
    ("remote", Tier::External),
    ("remotebackend", Tier::External),
];

/// Usual media as engines write them, so that no event needs a string of its own.
const USUAL: [&str; 6] = ["GPU", "CPU", "CPU_PINNED", "STORAGE", "DISK", "EXTERNAL"];

/// Tier of a medium, in upper or lower case; `None` is device memory. Blocks that are stored remotely are external
/// whatever their medium.
pub(crate) fn tier(medium: Option<&str>, locality: Option<&str>) -> Tier {
    if locality.is_some_and(|locality| locality.eq_ignore_ascii_case("remote")) {
        return Tier::External;
    }
    let Some(medium) = medium else { return Tier::Gpu };
    let known = MEDIA.iter().find(|(name, _)| name.eq_ignore_ascii_case(medium));
    known.map_or(Tier::External, |&(_, tier)| tier)
}

/// Copy of the text, without an allocation if it is a usual medium.
pub(crate) fn intern(medium: &str) -> Cow<'static, str> {
    let usual = USUAL.iter().find(|&&usual| usual == medium);
    usual.map_or_else(|| Cow::Owned(medium.to_owned()), |&usual| Cow::Borrowed(usual))
}

/// An engine's name of a block, in the form in which it was sent.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Name {
    /// An integer of 0 or more.
    Unsigned(u64),
    /// A negative integer. Made by [`Name::from`], so that every integer has one form.
    Signed(i64),
    /// A digest as bytes.
    Bytes(Box<[u8]>),
}

impl Name {
    /// Name by which the index knows the block.
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

/// Type that block names are read as: [`Name`]s keep the form in which they were sent, [`BlockHash`]es are the index's
/// form.
pub trait BlockName: Sized {
    /// Name made of an integer of 0 or more.
    fn unsigned(name: u64) -> Self;
    /// Name made of a negative integer.
    fn signed(name: i64) -> Self;
    /// Name made of a digest's bytes.
    fn digest(name: &[u8]) -> Self;
    /// Name by which the index knows the block.
    fn block_hash(&self) -> BlockHash;
    /// Names by which the index knows the blocks. `room`: memory for names that have to be converted.
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
