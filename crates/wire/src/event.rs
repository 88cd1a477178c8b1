//! Batches and events of engines as decoded values, with block hashes and media (names of tiers) as engines send them.

use std::borrow::Cow;

use kvatlas_index::{BlockHash, Tier};

use crate::error::RefusedEvent;
use crate::keys::Key;

/// Batch with block hashes in the form in which the engine sent them.
pub type Batch = BatchOf<Name>;
/// Event with block hashes in the form in which the engine sent them.
pub type Event = EventOf<Name>;
/// Store event with block hashes in the form in which the engine sent them.
pub type Stored = StoredOf<Name>;
/// Removal event with block hashes in the form in which the engine sent them.
pub type Removed = RemovedOf<Name>;

/// Batch of KV events that an engine publishes in one message, in order. `N` is the type of block hashes.
#[derive(Clone, PartialEq, Debug)]
pub struct BatchOf<N> {
    /// Timestamp of the batch in seconds, as sent; the engine's choice of clock is unknown.
    pub timestamp: f64,
    /// Data-parallel rank named in the batch; `None` if the engine names none.
    pub rank: Option<u32>,
    /// Events of the batch that could be decoded, in order.
    pub events: Vec<EventOf<N>>,
    /// Events of the batch that could not be decoded.
    pub refused: Vec<RefusedEvent>,
}

/// KV event of an engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EventOf<N> {
    /// Blocks were cached. Boxed, because this variant is much larger than the others.
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

/// Store event: consecutive blocks of one chain were cached. Adds one copy of each block, unless
/// [`reused`](Self::reused) is true.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredOf<N> {
    /// Block hashes of the blocks, parents first. May be empty.
    pub block_hashes: Vec<N>,
    /// Block hash of the block before the first one; `None` at the start of a prompt.
    pub parent: Option<N>,
    /// Token ids of the blocks. If the engine sends pairs of tokens (bigrams), the first token of each pair.
    pub tokens: Vec<u32>,
    /// Second token of each pair, if an engine with speculative decoding sends pairs of tokens (bigrams); else `None`.
    pub bigrams: Option<Vec<u32>>,
    /// Number of tokens in a block; 0 if blocks are announced by their hashes alone.
    pub block_size: u32,
    /// Engine's name of the tier that the blocks are on, as sent; `None` for device memory.
    pub medium: Option<Cow<'static, str>>,
    /// Name of the LoRA adapter; `None` without one.
    pub lora: Option<Box<str>>,
    /// Engine's number of the LoRA adapter. Deprecated in engines that send names.
    pub lora_id: Option<i64>,
    /// Cache salt of the blocks; `None` if the event has none. vLLM publishes it with the first block of a prompt only.
    pub salt: Option<Box<str>>,
    /// True if the event's format has no field for the salt and other keys, as in early engine versions. It is then
    /// unknown if the blocks have any.
    pub bare: bool,
    /// Keys that distinguish blocks of equal tokens, besides LoRA adapter and salt, such as an image's hash. Each pair
    /// is the position of a block in the event, and a key of this block; in the order of the blocks.
    pub extra_keys: Vec<(u32, Key)>,
    /// Digest of the adapter's weights, by which an engine distinguishes adapters with the same name; `None` if not
    /// published.
    pub adapter_digest: Option<AdapterDigest>,
    /// True if the blocks were cache hits and were not written, so that no copy of them was added.
    pub reused: bool,
    /// Number of the cache group (layers of a hybrid model whose blocks are kept together); `None` if the event names
    /// none.
    pub group: Option<u32>,
    /// Kind of attention of the cache group's layers, such as `full_attention`; `None` if not sent.
    pub kind: Option<Cow<'static, str>>,
    /// Window of a cache group with sliding-window attention, in tokens; `None` if not sent.
    pub window: Option<u64>,
    /// Location of an offloaded block: `LOCAL` for the engine's own host, or `REMOTE`; `None` if not sent.
    pub locality: Option<Box<str>>,
    /// Name of the secondary offload tier that has the blocks; `None` if not sent.
    pub ownership: Option<Box<str>>,
    /// Session whose request stored the blocks; does not affect the blocks' contents. `None` if not sent.
    pub session_id: Option<Box<str>>,
    /// Tokens that follow each block, if the engine's block hashes depend on them; else `None`.
    pub lookahead: Option<Vec<Vec<u32>>>,
}

/// Digest of a LoRA adapter's weights, found among the extra keys (keys besides tokens) of a store event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdapterDigest {
    /// Text of the adapter's digest, as sent.
    pub text: Box<str>,
    /// True if the string is certainly a digest; false if it looks like a digest but may be a cache salt.
    pub is_sure: bool,
}

/// Removal event: one copy of each block was evicted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemovedOf<N> {
    /// Block hashes of the evicted blocks, in any order.
    pub block_hashes: Vec<N>,
    /// Engine's name of the tier that the blocks were on, as sent; `None` for device memory.
    pub medium: Option<Cow<'static, str>>,
    /// Number of the cache group (layers of a hybrid model whose blocks are kept together); `None` if the event names
    /// none.
    pub group: Option<u32>,
    /// Location that an offloaded block was on: `LOCAL` for the engine's own host, or `REMOTE`; `None` if not sent.
    pub locality: Option<Box<str>>,
    /// Name of the secondary offload tier that had the blocks; `None` if not sent.
    pub ownership: Option<Box<str>>,
}

/// Clear event: a rank has lost all its blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cleared;

impl<N> StoredOf<N> {
    /// Returns the tier that the blocks are on.
    #[must_use]
    pub fn tier(&self) -> Tier {
        tier(self.medium.as_deref(), self.locality.as_deref())
    }

    /// Returns the name of the LoRA adapter by which the index knows it: the adapter's own name, or `lora-id:3` if the
    /// engine sends only the number 3; `None` without an adapter.
    ///
    /// Numbers of adapters are the engine's own, so the blocks are found only by a query with the number. Engines count
    /// adapters from 1; 0 means no adapter.
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
    /// Returns the tier that the blocks were on.
    #[must_use]
    pub fn tier(&self) -> Tier {
        tier(self.medium.as_deref(), self.locality.as_deref())
    }
}

/// Tier for each medium (name of a tier, in lower case) that engines and connectors send. Any other medium counts as
/// external, because a block in an unknown place must count neither as held in device memory nor as loadable by the
/// engine's own host.
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

/// Media (names of tiers) that engines usually send, as shared texts, so that events do not allocate strings for them.
const USUAL: [&str; 6] = ["GPU", "CPU", "CPU_PINNED", "STORAGE", "DISK", "EXTERNAL"];

/// Returns the tier of a medium (an engine's name for a tier, in upper or lower case); `None` means device memory.
/// Blocks whose `locality` is remote count as external, whatever their medium.
pub(crate) fn tier(medium: Option<&str>, locality: Option<&str>) -> Tier {
    if locality.is_some_and(|locality| locality.eq_ignore_ascii_case("remote")) {
        return Tier::External;
    }
    let Some(medium) = medium else { return Tier::Gpu };
    let known = MEDIA.iter().find(|(name, _)| name.eq_ignore_ascii_case(medium));
    known.map_or(Tier::External, |&(_, tier)| tier)
}

/// Copies the name of a medium (an engine's name for a tier), without an allocation if the name is a usual one.
pub(crate) fn intern(medium: &str) -> Cow<'static, str> {
    let usual = USUAL.iter().find(|&&usual| usual == medium);
    usual.map_or_else(|| Cow::Owned(medium.to_owned()), |&usual| Cow::Borrowed(usual))
}

/// Block hash, an engine's identifier of a block, in the form in which it was sent.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Name {
    /// A non-negative integer.
    Unsigned(u64),
    /// A negative integer. Created only by [`Name::from`], so that equal integers have equal forms.
    Signed(i64),
    /// The bytes of a digest.
    Bytes(Box<[u8]>),
}

impl Name {
    /// Returns the block hash in the form that the index uses.
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

/// Type that block hashes are decoded into: a [`Name`] keeps the form in which the hash was sent, a [`BlockHash`] has
/// the index's form.
pub trait BlockName: Sized {
    /// Makes a block hash from an integer of 0 or more.
    fn unsigned(name: u64) -> Self;
    /// Makes a block hash from a negative integer.
    fn signed(name: i64) -> Self;
    /// Makes a block hash from the bytes of a digest.
    fn digest(name: &[u8]) -> Self;
    /// Returns the block hash in the form that the index uses.
    fn block_hash(&self) -> BlockHash;
    /// Converts block hashes to the form that the index uses. `room` is memory for hashes that have to be converted.
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
