//! Keys of a block besides its tokens, such as the hash of an image, and the content hash of a block with keys.
//!
//! # The contract
//!
//! The content hash of a block with keys is XXH3-64, seeded by LoRA name and salt as for plain blocks, of the tokens as
//! little-endian `u32`s followed by one little-endian `u64` ([`Key::word`]) for each key, in the order of the keys.
//! Without keys, the result is the plain content hash. So a block with an image never equals a block of the same
//! placeholder tokens without an image or with another image. For items whose identifier is a SHA-256 in hexadecimal,
//! as vLLM makes them, the hash equals the one that KV routers share for multimodal blocks (`mm_hash`). Clients that
//! compute that hash for the items of a block, in their order, find the block.
//!
//! The offset of an item in a block is not hashed, because it is determined by the placeholder tokens, the order of the
//! items and the blocks before.

use kvatlas_index::hash::SEED;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Key that belongs to a block's contents besides tokens, LoRA name and salt.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Key {
    /// A multimodal item, such as an image or an audio clip, that overlaps the block.
    Item {
        /// Engine's identifier of an image's or other item's content: a hash in hexadecimal, or a name given by the
        /// client.
        identifier: Box<str>,
        /// Offset of the item, in tokens from the start of the block; negative if the item starts in an earlier block.
        offset: i64,
    },
    /// Digest of prompt embeddings that the client sent instead of tokens.
    Embeds(Box<[u8]>),
    /// A string of unknown meaning.
    Text(Box<str>),
    /// Any other key, as the MessagePack bytes in which it was sent.
    Other(Box<[u8]>),
}

impl Key {
    /// Computes the 64-bit word that represents the key in the block's content hash.
    ///
    /// For an identifier of 64 hexadecimal digits, the word is the number formed by the first 16 digits. For anything
    /// else, the word is an XXH3-64 hash: with seed 2 of another identifier's UTF-8, 3 of the bytes of embeddings, 4 of
    /// a string's UTF-8, 5 of MessagePack.
    #[must_use]
    pub fn word(&self) -> u64 {
        match self {
            Self::Item { identifier, .. } => digest(identifier).unwrap_or_else(|| named(identifier.as_bytes(), 2)),
            Self::Embeds(bytes) => named(bytes, 3),
            Self::Text(text) => named(text.as_bytes(), 4),
            Self::Other(value) => named(value, 5),
        }
    }

    /// Appends an unambiguous encoding of the data that determines the key's [`word`](Self::word). Keys with different
    /// data have different encodings, and no encoding is a prefix of another.
    pub(crate) fn spell(&self, out: &mut Vec<u8>) {
        let lower;
        let (kind, bytes) = match self {
            Self::Item { identifier, .. } if digest(identifier).is_some() => {
                lower = identifier.to_ascii_lowercase();
                (1, lower.as_bytes())
            }
            Self::Item { identifier, .. } => (2, identifier.as_bytes()),
            Self::Embeds(bytes) => (3, &**bytes),
            Self::Text(text) => (4, text.as_bytes()),
            Self::Other(value) => (5, &**value),
        };
        out.push(kind);
        out.extend((bytes.len() as u64).to_le_bytes());
        out.extend(bytes);
    }
}

fn named(bytes: &[u8], kind: u64) -> u64 {
    xxh3_64_with_seed(bytes, kind)
}

/// Parses the first 64 bits of a SHA-256 in hexadecimal; `None` if the identifier is not one.
fn digest(identifier: &str) -> Option<u64> {
    let is_digest = identifier.len() == 64 && identifier.bytes().all(|digit| digit.is_ascii_hexdigit());
    if is_digest { u64::from_str_radix(&identifier[..16], 16).ok() } else { None }
}

/// Computes the content hash of one block with keys, as defined in the module's documentation. An empty adapter name or
/// salt counts as none.
#[must_use]
pub fn content_hash<'a>(
    tokens: &[u32],
    keys: impl IntoIterator<Item = &'a Key>,
    lora: Option<&str>,
    salt: Option<&str>,
) -> u64 {
    let mut bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    bytes.extend(keys.into_iter().flat_map(|key| key.word().to_le_bytes()));
    xxh3_64_with_seed(&bytes, seed(lora, salt))
}

/// Returns the hash seed for blocks with this LoRA adapter and salt. A test checks that it equals the seed in
/// `kvatlas_index::hash`.
fn seed(lora: Option<&str>, salt: Option<&str>) -> u64 {
    let part = |name: Option<&str>, kind| match name {
        None | Some("") => 0,
        Some(name) => named(name.as_bytes(), kind),
    };
    SEED.wrapping_add(part(lora, 0)).wrapping_add(part(salt, 1))
}

#[cfg(test)]
mod tests {
    use kvatlas_index::hash::content_hashes;

    use super::*;

    fn item(identifier: &str, offset: i64) -> Key {
        Key::Item { identifier: identifier.into(), offset }
    }

    #[test]
    fn without_keys_it_is_the_plain_hash() {
        let tokens: Vec<u32> = (0..16).collect();
        for (lora, salt) in
            [(None, None), (Some("a"), None), (None, Some("b")), (Some("a"), Some("b")), (Some(""), None)]
        {
            assert_eq!([content_hash(&tokens, [], lora, salt)][..], content_hashes(&tokens, 16, lora, salt));
        }
    }

    /// Checks the published test vector of the hash that KV routers share: `mm_hash` 0xDEADBEEF with the tokens 1, 2,
    /// 3, 4.
    #[test]
    fn one_item_is_the_shared_contract() {
        let key = item(&format!("{:016x}{}", 0xdead_beef_u32, "7".repeat(48)), 1);
        assert_eq!(key.word(), 0xdead_beef);
        assert_eq!(content_hash(&[1, 2, 3, 4], [&key], None, None), 15_207_512_089_340_001_072);
    }

    #[test]
    fn different_keys_are_different_contents() {
        let keys = [
            vec![],
            vec![item("a", 0)],
            vec![item("b", 0)],
            vec![item("a", 0), item("b", 4)],
            vec![item("b", 0), item("a", 4)],
            vec![Key::Embeds(b"a"[..].into())],
            vec![Key::Text("a".into())],
            vec![Key::Other(b"a"[..].into())],
            vec![item(&"0".repeat(64), 0)],
            vec![item(&"0".repeat(63), 0)],
        ];
        let mut hashes: Vec<u64> = keys.iter().map(|keys| content_hash(&[1, 2, 3, 4], keys, None, None)).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), keys.len());
    }
}
