//! Dialects: the ways in which engines name blocks, for those that compute names from tokens.

use std::fmt;
use std::sync::Arc;

use kvatlas_index::BlockHash;
use sha2::{Digest as _, Sha256};
use xxhash_rust::xxh3::xxh3_128;

use crate::encode::{cbor_block, cbor_text, pickle_block, pickled_text};

/// The seed of vLLM's names where none is set.
const DEFAULT_SEED: &str = "vllm-none-hash";

/// Bytes that SGLang puts before a salt.
const SGLANG_SALT: &[u8] = b"sglang-cache-salt-v1\0";

/// Algorithm by which an engine computes the digests of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Algorithm {
    /// vLLM's default: SHA-256 of a pickle.
    Sha256,
    /// SHA-256 of canonical CBOR.
    Sha256Cbor,
    /// XXH3-128 of a pickle.
    Xxhash,
    /// XXH3-128 of canonical CBOR.
    XxhashCbor,
    /// SGLang: SHA-256 of the parent's digest and the tokens.
    Sglang,
}

impl Algorithm {
    /// Algorithms of vLLM, as its option names them.
    const VLLM: [Self; 4] = [Self::Sha256, Self::Sha256Cbor, Self::Xxhash, Self::XxhashCbor];

    /// Name of the algorithm.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "vllm-sha256",
            Self::Sha256Cbor => "vllm-sha256_cbor",
            Self::Xxhash => "vllm-xxhash",
            Self::XxhashCbor => "vllm-xxhash_cbor",
            Self::Sglang => "sglang",
        }
    }
}

/// Scheme of digests: the algorithm and its seed.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Scheme {
    /// Algorithm of the digests.
    pub algorithm: Algorithm,
    /// The seed; none for those without, and for vLLM's own.
    pub seed: Option<Arc<str>>,
}

/// Form in which an engine sends a digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Form {
    /// Integer of 64 bits.
    Integer,
    /// The whole digest.
    Digest,
}

/// Dialect of an engine: its names for blocks, as it computes and sends them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Dialect {
    /// Scheme of the digests.
    pub scheme: Scheme,
    /// Form in which they are sent.
    pub form: Form,
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.scheme.algorithm.name())?;
        if self.scheme.seed.is_some() {
            f.write_str(" with a seed")?;
        }
        if self.form == Form::Digest { f.write_str(", whole digests") } else { Ok(()) }
    }
}

impl Scheme {
    /// Schemes to try: those without a seed, and those with one for each of `seeds`.
    #[must_use]
    pub fn candidates(seeds: &[Arc<str>]) -> Vec<Self> {
        let plain = [Algorithm::Sha256, Algorithm::Sglang, Algorithm::Sha256Cbor];
        let plain = plain.into_iter().map(|algorithm| Self { algorithm, seed: None });
        let seeded =
            seeds.iter().flat_map(|seed| Algorithm::VLLM.map(|algorithm| Self { algorithm, seed: Some(seed.clone()) }));
        plain.chain(seeded).collect()
    }

    /// Forms in which engines of this scheme send digests.
    #[must_use]
    pub fn forms(&self) -> &'static [Form] {
        if self.algorithm == Algorithm::Sglang { &[Form::Integer] } else { &[Form::Integer, Form::Digest] }
    }

    /// Names the blocks of a prompt, one after the other.
    #[must_use]
    pub fn namer(&self, salt: Option<&str>) -> Namer {
        let salt = salt.filter(|salt| !salt.is_empty());
        let seed = self.seed.as_deref().unwrap_or(DEFAULT_SEED);
        let mut buffer = Vec::new();
        let digest = match self.algorithm {
            Algorithm::Sha256 => Digest::sha256(&pickled_text(seed)),
            Algorithm::Xxhash => Digest::xxh3(&pickled_text(seed)),
            Algorithm::Sha256Cbor | Algorithm::XxhashCbor => {
                cbor_text(seed, &mut buffer);
                if self.algorithm == Algorithm::Sha256Cbor { Digest::sha256(&buffer) } else { Digest::xxh3(&buffer) }
            }
            Algorithm::Sglang => {
                salt.map_or(Digest::NONE, |salt| Digest::sha256(&[SGLANG_SALT, salt.as_bytes()].concat()))
            }
        };
        let salt = salt.filter(|_| self.algorithm != Algorithm::Sglang).map(Into::into);
        Namer { algorithm: self.algorithm, digest, salt, buffer }
    }
}

/// Names the blocks of a prompt, one after the other.
#[derive(Clone, Debug)]
pub struct Namer {
    algorithm: Algorithm,
    /// Digest of the block before.
    digest: Digest,
    /// Salt before the first block, for algorithms that put it there.
    salt: Option<Box<str>>,
    buffer: Vec<u8>,
}

impl Namer {
    /// Digest of the next block, given its tokens.
    pub fn next(&mut self, tokens: &[u32]) -> Digest {
        let salt = self.salt.take();
        let (parent, buffer) = (self.digest.bytes(), &mut self.buffer);
        self.digest = match self.algorithm {
            Algorithm::Sha256 | Algorithm::Xxhash => {
                pickle_block(parent, tokens, salt.as_deref(), buffer);
                if self.algorithm == Algorithm::Sha256 { Digest::sha256(buffer) } else { Digest::xxh3(buffer) }
            }
            Algorithm::Sha256Cbor | Algorithm::XxhashCbor => {
                cbor_block(parent, tokens, salt.as_deref(), buffer);
                if self.algorithm == Algorithm::Sha256Cbor { Digest::sha256(buffer) } else { Digest::xxh3(buffer) }
            }
            Algorithm::Sglang => {
                buffer.clear();
                buffer.extend_from_slice(parent);
                buffer.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
                Digest { first: true, ..Digest::sha256(buffer) }
            }
        };
        self.digest
    }
}

/// A block's digest, of 16 or 32 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Digest {
    bytes: [u8; 32],
    len: u8,
    /// True if the first bytes are sent, signed; else the last, unsigned.
    first: bool,
}

impl Digest {
    const NONE: Self = Self { bytes: [0; 32], len: 0, first: false };

    fn sha256(data: &[u8]) -> Self {
        Self { bytes: Sha256::digest(data).into(), len: 32, first: false }
    }

    fn xxh3(data: &[u8]) -> Self {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&xxh3_128(data).to_be_bytes());
        Self { bytes, len: 16, first: false }
    }

    /// Bytes of the whole digest.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The name that the index has for a block with this digest.
    #[must_use]
    pub fn name(&self, form: Form) -> BlockHash {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&self.bytes[at..at + 8]);
            word
        };
        match form {
            Form::Digest => BlockHash::from_bytes(self.bytes()),
            Form::Integer if self.first => BlockHash::from_i64(i64::from_be_bytes(word(0))),
            Form::Integer => BlockHash(u64::from_be_bytes(word(usize::from(self.len) - 8))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: [[u32; 4]; 2] = [[1, 2, 3, 4], [5, 6, 7, 8]];

    fn scheme(algorithm: Algorithm, seed: Option<&str>) -> Scheme {
        Scheme { algorithm, seed: seed.map(Into::into) }
    }

    fn names(scheme: &Scheme, salt: Option<&str>) -> Vec<u64> {
        let mut namer = scheme.namer(salt);
        BLOCKS.iter().map(|tokens| namer.next(tokens).name(Form::Integer).0).collect()
    }

    #[test]
    fn vectors_of_vllm() {
        assert_eq!(
            names(&scheme(Algorithm::Sha256, None), None),
            [1_882_140_585_328_457_242, 15_284_023_028_817_948_126]
        );
        assert_eq!(
            names(&scheme(Algorithm::Sha256Cbor, None), None),
            [9_561_501_211_280_363_793, 15_292_913_576_410_714_033]
        );
        let seeded = scheme(Algorithm::Sha256Cbor, Some("0"));
        assert_eq!(names(&seeded, None)[0], 2_164_874_634_404_590_027);
        let whole = seeded.namer(None).next(&BLOCKS[0]);
        assert_eq!(whole.bytes()[..4], [0xc9, 0xd5, 0x8b, 0xa6]);
        assert_eq!(whole.name(Form::Digest), BlockHash::from_bytes(whole.bytes()));
    }

    #[test]
    fn vectors_of_sglang() {
        let mut namer = scheme(Algorithm::Sglang, None).namer(None);
        assert_eq!(namer.next(&[1, 2]).name(Form::Integer), BlockHash(3_817_746_824_117_602_890));
        assert_eq!(namer.next(&[3, 4]).name(Form::Integer), BlockHash::from_i64(-4_216_701_448_867_210_342));
    }

    #[test]
    fn what_is_not_shared_has_other_names() {
        let schemes = Scheme::candidates(&["1".into()]);
        let mut seen = std::collections::HashSet::new();
        for scheme in &schemes {
            assert_eq!(names(scheme, Some("")), names(scheme, None), "no salt");
            for salt in [None, Some("tenant-1"), Some("tenant-2")] {
                assert!(names(scheme, salt).into_iter().all(|name| seen.insert(name)), "{scheme:?} {salt:?}");
            }
        }
        assert_eq!(seen.len(), schemes.len() * 3 * 2);
    }
}
