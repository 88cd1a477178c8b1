//! Identities of blocks: their names in an index, and how two blocks with one name are noticed.
//!
//! Ordinarily a block is called by its content hash ([`hash`]), which everybody can compute: engines' tools, clients, other
//! replicas. Its seed is public and it has 64 bits, so a client that chooses prompts can make two blocks with one content
//! hash. To the index they are one block: it then says of a prompt that more of it is cached than is.
//!
//! # Keyed
//!
//! [`Identity::keyed`] draws a secret key. A block's identity is then 128 bits of BLAKE3 under that key, of
//! the adapter, the salt, the tokens, and all of each key beyond the tokens. Nobody who does not know the key can do
//! better than chance, whatever is tried. The index compares 64 of the bits: two different blocks after the same prefix
//! are taken for one in one of 2^64 cases, and it does not help to choose them. The other 64 are compared below.
//!
//! # Collisions that are seen
//!
//! An [`Identity`] remembers of some recent blocks what they are called and a few bits that depend on their content by a
//! secret. If another block comes that is called the same, its bits differ, and that is counted. It is a sample: which
//! of two blocks was there first is forgotten when enough others have come.

use std::borrow::Cow;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kvatlas_index::hash;
use xxhash_rust::xxh3::{xxh3_64_with_secret, xxh3_64_with_seed};

use crate::keys::{self, Key};

/// Scheme of the names of blocks in one or more indexes. See the module's text.
pub struct Identity {
    kind: Kind,
    seen: RecentBlocks,
}

enum Kind {
    Public(Check),
    Keyed([u8; 32]),
}

/// Space of the blocks of a prompt: what belongs to all of them beside their tokens. An empty name is none.
#[derive(Clone, Copy, Default)]
pub(crate) struct Space<'a> {
    pub(crate) lora: Option<&'a str>,
    pub(crate) salt: Option<&'a str>,
}

/// A block's identity: the word is what the index knows, the check what the words of equal blocks agree in besides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct BlockIdentity {
    word: u64,
    check: u64,
}

impl Identity {
    /// Blocks are called by their content hashes.
    #[must_use]
    pub fn public() -> Self {
        Self { kind: Kind::Public(Check::new()), seen: RecentBlocks::new() }
    }

    /// Blocks are called by words that depend on a key, which is drawn here and never told.
    #[must_use]
    pub fn keyed() -> Self {
        let mut key = [0; 32];
        key.as_chunks_mut().0.iter_mut().for_each(|word: &mut [u8; 8]| *word = random().to_le_bytes());
        Self { kind: Kind::Keyed(key), seen: RecentBlocks::new() }
    }

    /// Blocks are called by words that depend on this key: the same in every process that has it.
    #[must_use]
    pub fn with_key(key: [u8; 32]) -> Self {
        Self { kind: Kind::Keyed(key), seen: RecentBlocks::new() }
    }

    /// A number that says which key words depend on, and nothing of the key; 0 if they depend on none.
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

    /// True if blocks are named by words that need the secret key.
    #[must_use]
    pub fn is_keyed(&self) -> bool {
        matches!(self.kind, Kind::Keyed(_))
    }

    /// Blocks called as another one was that was seen shortly before: how many were seen so far.
    #[must_use]
    pub fn collisions(&self) -> u64 {
        self.seen.collisions.load(Relaxed)
    }

    /// Computes the words of the full blocks of `tokens`, as [`hash::content_hashes_into`] takes and gives them.
    ///
    /// # Panics
    ///
    /// If `words` is not one element for each full block.
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

    /// [`words_into`](Self::words_into) into a list of its own.
    #[must_use]
    pub fn words(&self, tokens: &[u32], block_size: usize, lora: Option<&str>, salt: Option<&str>) -> Vec<u64> {
        let mut words = vec![0; tokens.len().checked_div(block_size).unwrap_or(0)];
        self.words_into(tokens, block_size, lora, salt, &mut words);
        words
    }

    /// Computes the words of the blocks of an event, whose tokens fill them. `extra`: the keys of some blocks, by
    /// block. Returns how many of the words are those of other blocks too.
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

/// 64 secret bits: the empty hash under a key that the operating system draws at random.
fn random() -> u64 {
    RandomState::new().hash_one(0)
}

/// The key of the blocks with this adapter and salt.
fn key_of(key: &[u8; 32], space: Space<'_>) -> [u8; 32] {
    let name = |name: Option<&str>| name.unwrap_or_default().to_owned();
    let (lora, salt) = (name(space.lora), name(space.salt));
    if lora.is_empty() && salt.is_empty() {
        return *key;
    }
    let length = (lora.len() as u64).to_le_bytes();
    *blake3::keyed_hash(key, &[&length, lora.as_bytes(), salt.as_bytes()].concat()).as_bytes()
}

/// A block's identity under the key of its adapter and salt.
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

/// Tells blocks with one content hash apart: quick, and secret enough to see what was made up without knowing it.
struct Check {
    secret: [u8; 192],
    seeds: [u64; 2],
}

/// The same for an adapter and a salt.
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

/// Blocks that are remembered: two megabytes of them.
const REMEMBERED_BITS: u32 = 18;

/// Recent blocks, each at the place that its word says.
struct RecentBlocks {
    /// The rest of the word, and as many bits of the check as there is room for. Each is written by one store, so what is
    /// found is of one block.
    entries: Box<[AtomicU64]>,
    collisions: AtomicU64,
}

impl RecentBlocks {
    fn new() -> Self {
        Self { entries: (0..1 << REMEMBERED_BITS).map(|_| AtomicU64::new(0)).collect(), collisions: AtomicU64::new(0) }
    }

    /// Remembers a block; returns whether another one that is called the same was remembered.
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
