//! Hashes of nodes' paths: 64 bits that routers exchange in place of a whole prompt.
//!
//! The first 8 bytes, little-endian, of BLAKE3 over the path's UTF-8 bytes or its tokens' little-endian bytes, as in
//! other routers. 0 means "all nodes" and is never a path's hash: a path with this hash gets 1.

/// Value, in place of the hash of a node's path (the text or tokens from the root), that stands for all nodes that a
/// tenant holds.
pub const GLOBAL_EVICTION_HASH: u64 = 0;

/// Incremental computation of the hash of a node's path, the text or tokens from the root to the node's end.
#[derive(Debug, Clone, Default)]
pub struct PathHasher(blake3::Hasher);

impl PathHasher {
    /// Creates a hasher for the empty path, the root's.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends text to the path that is hashed.
    pub fn update_text(&mut self, text: &str) {
        self.update_bytes(text.as_bytes());
    }

    pub(crate) fn update_bytes(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Appends tokens to the path that is hashed.
    pub fn update_tokens(&mut self, tokens: &[u32]) {
        if cfg!(target_endian = "little") {
            self.0.update(bytemuck::cast_slice(tokens));
        } else {
            for token in tokens {
                self.0.update(&token.to_le_bytes());
            }
        }
    }

    /// Hash of the path so far; more text or tokens may be appended afterwards.
    #[must_use]
    pub fn finish(&self) -> u64 {
        let mut first = [0; 8];
        first.copy_from_slice(&self.0.finalize().as_bytes()[..8]);
        u64::from_le_bytes(first).max(1)
    }
}

/// Computes the hash of a path of text, which is never [`GLOBAL_EVICTION_HASH`].
#[must_use]
pub fn hash_node_path(path: &str) -> u64 {
    let mut hasher = PathHasher::new();
    hasher.update_text(path);
    hasher.finish()
}

/// Computes the hash of a path of tokens, which is never [`GLOBAL_EVICTION_HASH`].
#[must_use]
pub fn hash_token_path(tokens: &[u32]) -> u64 {
    let mut hasher = PathHasher::new();
    hasher.update_tokens(tokens);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::{PathHasher, hash_node_path, hash_token_path};

    #[test]
    fn the_vectors_of_the_contract() {
        assert_eq!(hash_node_path(""), 0xa6a1_f9f5_b949_13af);
        assert_eq!(hash_token_path(&[]), 0xa6a1_f9f5_b949_13af);
        assert_eq!(hash_node_path("hello"), 0x9282_86b3_3d16_8fea);
        assert_eq!(hash_token_path(&[1, 2, 3]), 0x20cb_7c4a_90f4_07df);
    }

    #[test]
    fn parts_hash_as_the_whole() {
        let mut hasher = PathHasher::new();
        hasher.update_text("he");
        hasher.update_text("llo");
        assert_eq!(hasher.finish(), hash_node_path("hello"));
    }
}
