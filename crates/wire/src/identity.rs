//! Hashes by which an index identifies blocks, and detection of different blocks with equal hashes.
//!
//! By default a block is identified by its content hash ([`hash`]), which engines' tools, clients and other services
//! can compute. The content hash has 64 bits and a public seed, so a client that chooses prompts can construct two
//! blocks with equal content hashes. The index then treats them as one block, and reports more of a prompt as cached
//! than is.
//!
//! # Keyed hashes
//!
//! [`Identity::keyed`] draws a secret key. A block is then identified by 128 bits of BLAKE3 under that key, over the
//! adapter, the salt, the tokens and the block's other keys. Without the secret key, no method of constructing equal
//! hashes is better than chance. The index compares 64 of the bits, so two different blocks after the same prefix are
//! mistaken for one with probability 2^-64. The other 64 bits are compared for recent blocks only, as described next.
//!
//! # Detection of collisions
//!
//! An [`Identity`] remembers the hashes of some recent blocks, with a few bits that depend on the block's contents and
//! a secret. If another block has the same hash but different bits, a collision is counted. Detection is a sample: a
//! remembered block is overwritten when enough others have been seen.

use std::borrow::Cow;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kvatlas_index::hash;
use xxhash_rust::xxh3::{xxh3_64_with_secret, xxh3_64_with_seed};

use crate::keys::{self, Key};

/// Scheme by which one or more indexes identify blocks: content hashes, or hashes under a secret key.
pub struct Identity {
    kind: Kind,
    seen: RecentBlocks,
}

enum Kind {
    Public(Check),
    Keyed([u8; 32]),
}

/// LoRA adapter and cache salt, which all blocks of a prompt share. An empty text counts as none.
#[derive(Clone, Copy, Default)]
pub(crate) struct Space<'a> {
    pub(crate) lora: Option<&'a str>,
    pub(crate) salt: Option<&'a str>,
}

/// Identity of a block: the 64-bit hash by which the index knows the block, and further bits that distinguish blocks
/// with equal hashes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct BlockIdentity {
    word: u64,
    check: u64,
}

impl Identity {
    /// Creates the scheme that identifies blocks by their content hashes.
    #[must_use]
    pub fn public() -> Self {
        Self { kind: Kind::Public(Check::new()), seen: RecentBlocks::new() }
    }

    /// Creates the scheme that identifies blocks by hashes under a secret key, which is drawn at random and never
    /// disclosed.
    #[must_use]
    pub fn keyed() -> Self {
        let mut key = [0; 32];
        key.as_chunks_mut().0.iter_mut().for_each(|word: &mut [u8; 8]| *word = random().to_le_bytes());
        Self { kind: Kind::Keyed(key), seen: RecentBlocks::new() }
    }

    /// Creates the scheme that identifies blocks by hashes under the given secret key; the hashes are equal in every
    /// process that has the key.
    #[must_use]
    pub fn with_key(key: [u8; 32]) -> Self {
        Self { kind: Kind::Keyed(key), seen: RecentBlocks::new() }
    }

    /// Returns a check value that identifies the secret key without disclosing it; 0 without a key.
    #[must_use]
    pub fn key_check(&self) -> u32 {
        match &self.kind {
            Kind::Public(_) => 0,
            Kind::Keyed(key) => {
                let hash = blake3::keyed_hash(key, b"kvatlas: which key is this?");
                let [a, b, c, d, ..] = *hash.as_bytes();
                u32::from_le_bytes([a, b, c, d]).max(1)
            }
        }
    }

    /// True if blocks are identified by hashes under a secret key.
    #[must_use]
    pub fn is_keyed(&self) -> bool {
        matches!(self.kind, Kind::Keyed(_))
    }

    /// Returns the number of detected collisions: blocks with the same hash as a different block seen shortly before.
    #[must_use]
    pub fn collisions(&self) -> u64 {
        self.seen.collisions.load(Relaxed)
    }

    /// Computes the index's hashes of the full blocks of `tokens`, with the arguments of [`hash::content_hashes_into`].
    ///
    /// # Panics
    ///
    /// If the length of `words` is not the number of full blocks.
    pub fn words_into(
        &self,
        tokens: &[u32],
        block_size: usize,
        lora: Option<&str>,
        salt: Option<&str>,
        words: &mut [u64],
    ) {
        match &self.kind {
            Kind::Public(_) => hash::content_hashes_into(tokens, block_size, lora, salt, words),
            Kind::Keyed(key) => {
                let blocks = tokens.len().checked_div(block_size).unwrap_or(0);
                assert_eq!(words.len(), blocks, "one element for each full block");
                let key = key_of(key, Space { lora, salt });
                for (word, block) in words.iter_mut().zip(tokens.chunks_exact(block_size.max(1))) {
                    *word = keyed(&key, block, []).word;
                }
            }
        }
    }

    /// Returns the index's hashes of the full blocks of `tokens`, as computed by [`words_into`](Self::words_into).
    #[must_use]
    pub fn words(&self, tokens: &[u32], block_size: usize, lora: Option<&str>, salt: Option<&str>) -> Vec<u64> {
        let mut words = vec![0; tokens.len().checked_div(block_size).unwrap_or(0)];
        self.words_into(tokens, block_size, lora, salt, &mut words);
        words
    }

    /// Computes the index's hashes of an event's blocks, which the tokens fill exactly. `extra` has further keys of
    /// some blocks, by the position of the block. Returns the number of collisions with different blocks seen before.
    pub(crate) fn words_of(
        &self,
        tokens: &[u32],
        block_size: usize,
        space: Space<'_>,
        extra: &[(u32, Key)],
        words: &mut [u64],
    ) -> u64 {
        if block_size == 0 {
            return 0;
        }
        let mut collisions = 0;
        let mut extra = extra.chunk_by(|one, next| one.0 == next.0).peekable();
        let mut keys_of = |block: usize| {
            while extra.next_if(|keys| (keys[0].0 as usize) < block).is_some() {}
            extra.next_if(|keys| keys[0].0 as usize == block).unwrap_or_default()
        };
        match &self.kind {
            Kind::Public(check) => {
                hash::content_hashes_into(tokens, block_size, space.lora, space.salt, words);
                let check = check.of(space);
                for (at, (word, block)) in words.iter_mut().zip(tokens.chunks_exact(block_size)).enumerate() {
                    let keys = keys_of(at);
                    if !keys.is_empty() {
                        let keys = keys.iter().map(|(_, key)| key);
                        *word = keys::content_hash(block, keys, space.lora, space.salt);
                    }
                    let check = check.block(block, keys.iter().map(|(_, key)| key));
                    collisions += u64::from(self.seen.note(BlockIdentity { word: *word, check }));
                }
            }
            Kind::Keyed(key) => {
                let key = key_of(key, space);
                for (at, (word, block)) in words.iter_mut().zip(tokens.chunks_exact(block_size)).enumerate() {
                    let named = keyed(&key, block, keys_of(at).iter().map(|(_, key)| key));
                    *word = named.word;
                    collisions += u64::from(self.seen.note(named));
                }
            }
        }
        collisions
    }
}

impl Default for Identity {
    fn default() -> Self {
        Self::public()
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without what is secret.
        f.debug_struct("Identity").field("keyed", &self.is_keyed()).finish_non_exhaustive()
    }
}

/// Draws 64 secret random bits, from the random key that the standard library's hasher gets from the operating system.
fn random() -> u64 {
    RandomState::new().hash_one(0)
}

/// Derives from the main key the secret key for blocks with this LoRA adapter and salt.
fn key_of(key: &[u8; 32], space: Space<'_>) -> [u8; 32] {
    let name = |name: Option<&str>| name.unwrap_or_default().to_owned();
    let (lora, salt) = (name(space.lora), name(space.salt));
    if lora.is_empty() && salt.is_empty() {
        return *key;
    }
    let length = (lora.len() as u64).to_le_bytes();
    *blake3::keyed_hash(key, &[&length, lora.as_bytes(), salt.as_bytes()].concat()).as_bytes()
}

/// Computes the identity of a block under the secret key for its LoRA adapter and salt.
fn keyed<'k>(key: &[u8; 32], tokens: &[u32], extra: impl IntoIterator<Item = &'k Key>) -> BlockIdentity {
    let mut bytes = little_endian(tokens);
    for extra in extra {
        extra.spell(bytes.to_mut());
    }
    let hash = blake3::keyed_hash(key, &bytes);
    let [word, check, ..] = *hash.as_bytes().as_chunks().0 else { unreachable!("32 bytes are four words") };
    BlockIdentity { word: u64::from_le_bytes(word), check: u64::from_le_bytes(check) }
}

fn little_endian(tokens: &[u32]) -> Cow<'_, [u8]> {
    if cfg!(target_endian = "little") {
        Cow::Borrowed(bytemuck::cast_slice(tokens))
    } else {
        Cow::Owned(tokens.iter().flat_map(|t| t.to_le_bytes()).collect())
    }
}

/// Secret hash function that distinguishes blocks with equal content hashes. Fast, and not predictable for clients that
/// choose blocks.
struct Check {
    secret: [u8; 192],
    seeds: [u64; 2],
}

/// Secret hash function for the blocks with one LoRA adapter and salt.
struct CheckOf<'c> {
    secret: &'c [u8; 192],
    space: u64,
}

impl Check {
    fn new() -> Self {
        let mut secret = [0; 192];
        secret.as_chunks_mut().0.iter_mut().for_each(|word: &mut [u8; 8]| *word = random().to_le_bytes());
        Self { secret, seeds: [random(), random()] }
    }

    fn of(&self, space: Space<'_>) -> CheckOf<'_> {
        let part = |name: Option<&str>, seed| match name {
            None | Some("") => 0,
            Some(name) => xxh3_64_with_seed(name.as_bytes(), seed),
        };
        let space = part(space.lora, self.seeds[0]) ^ part(space.salt, self.seeds[1]);
        CheckOf { secret: &self.secret, space }
    }
}

impl CheckOf<'_> {
    #[inline]
    fn block<'k>(&self, tokens: &[u32], extra: impl IntoIterator<Item = &'k Key>) -> u64 {
        let mut bytes = little_endian(tokens);
        for extra in extra {
            extra.spell(bytes.to_mut());
        }
        xxh3_64_with_secret(&bytes, self.secret) ^ self.space
    }
}

/// Binary logarithm of the number of remembered blocks; 2^18 blocks occupy two megabytes.
const REMEMBERED_BITS: u32 = 18;

/// Table of recently seen blocks, each at a position given by its hash.
struct RecentBlocks {
    /// Entries of the table: the rest of a block's hash, and as many check bits as fit into 64 bits. An entry is
    /// written atomically, so all its bits belong to one block.
    entries: Box<[AtomicU64]>,
    collisions: AtomicU64,
}

impl RecentBlocks {
    fn new() -> Self {
        Self { entries: (0..1 << REMEMBERED_BITS).map(|_| AtomicU64::new(0)).collect(), collisions: AtomicU64::new(0) }
    }

    /// Remembers a block. Returns true if a different block with the same hash was remembered at its position.
    #[inline]
    fn note(&self, BlockIdentity { word, check }: BlockIdentity) -> bool {
        let place = &self.entries[word as usize & ((1 << REMEMBERED_BITS) - 1)];
        let entry = word >> REMEMBERED_BITS << REMEMBERED_BITS | check >> (64 - REMEMBERED_BITS);
        let before = place.load(Relaxed);
        if before == entry {
            return false;
        }
        place.store(entry, Relaxed);
        let collides = before != 0 && before >> REMEMBERED_BITS == entry >> REMEMBERED_BITS;
        if collides {
            self.collisions.fetch_add(1, Relaxed);
        }
        collides
    }
}
