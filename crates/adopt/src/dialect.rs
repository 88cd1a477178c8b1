//! Dialects: the ways in which different engines compute block hashes from tokens.
//!
//! An engine computes a block's digest by hashing the parent's digest, the block's tokens and its other keys, encoded
//! as bytes.
//!
//! vLLM has two encodings of these three: Python's pickle, protocol 5, as the C pickler writes it, and canonical CBOR.
//! In some cases the pickle depends on whether two strings are one and the same Python object (strings shared between
//! the extra keys); this module writes the bytes for different objects. If an engine's strings are shared, its block
//! hashes are not found, and none of its blocks is adopted by mistake.

use std::fmt;
use std::sync::Arc;

use kvatlas_index::BlockHash;
use sha2::{Digest as _, Sha256};
use xxhash_rust::xxh3::xxh3_128;

/// Seed of vLLM's block hashes if none is configured.
const DEFAULT_SEED: &str = "vllm-none-hash";

/// Prefix of the bytes that SGLang hashes for a cache salt.
const SGLANG_SALT: &[u8] = b"sglang-cache-salt-v1\0";

/// Hash algorithm by which an engine computes block hashes from tokens.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Algorithm {
    /// SHA-256 of a Python pickle, vLLM's default.
    Sha256,
    /// SHA-256 of canonical CBOR (vLLM).
    Sha256Cbor,
    /// XXH3-128 of a Python pickle (vLLM).
    Xxhash,
    /// XXH3-128 of canonical CBOR (vLLM).
    XxhashCbor,
    /// SHA-256 of the parent's digest and the tokens, used by SGLang.
    Sglang,
}

impl Algorithm {
    /// Algorithms of vLLM, in the order of their declaration.
    const VLLM: [Self; 4] = [Self::Sha256, Self::Sha256Cbor, Self::Xxhash, Self::XxhashCbor];

    /// Returns the name of the algorithm, for answers and messages.
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

/// Scheme by which an engine computes block hashes from tokens: the hash algorithm and its seed.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Scheme {
    /// Hash algorithm of the block hashes.
    pub algorithm: Algorithm,
    /// Seed that enters the digest of a prompt's first block; `None` for algorithms without a seed, and for vLLM's
    /// default seed.
    pub seed: Option<Arc<str>>,
}

/// Form in which an engine sends a block hash in its events.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Form {
    /// Block hash sent as a 64-bit integer, made of eight bytes of the full digest.
    Integer,
    /// Block hash sent as all bytes of the digest.
    Digest,
}

/// Dialect of an engine: the scheme by which it computes block hashes, and the form in which it sends them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Dialect {
    /// Scheme by which the engine computes block hashes.
    pub scheme: Scheme,
    /// Form in which the engine sends block hashes in its events.
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
    /// Returns the schemes that an engine may use: those with the default seed or without a seed, and vLLM's with each
    /// of `seeds`.
    #[must_use]
    pub fn candidates(seeds: &[Arc<str>]) -> Vec<Self> {
        let plain = [Algorithm::Sha256, Algorithm::Sglang, Algorithm::Sha256Cbor];
        let plain = plain.into_iter().map(|algorithm| Self { algorithm, seed: None });
        let seeded =
            seeds.iter().flat_map(|seed| Algorithm::VLLM.map(|algorithm| Self { algorithm, seed: Some(seed.clone()) }));
        plain.chain(seeded).collect()
    }

    /// Returns the forms (integer or bytes) in which engines that use the scheme may send block hashes.
    #[must_use]
    pub fn forms(&self) -> &'static [Form] {
        if self.algorithm == Algorithm::Sglang { &[Form::Integer] } else { &[Form::Integer, Form::Digest] }
    }

    /// Creates a [`Namer`], which computes the block hashes of a prompt with this cache salt.
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

/// Calculator of the digests (full block hashes) of a prompt's blocks, one block after the other.
#[derive(Clone, Debug)]
pub struct Namer {
    algorithm: Algorithm,
    /// Digest (full block hash) of the previous block; before the first block, the seed's digest.
    digest: Digest,
    /// Cache salt that enters the first block's digest; `None` after the first block, or without a salt.
    salt: Option<Box<str>>,
    buffer: Vec<u8>,
}

impl Namer {
    /// Computes the digest (full block hash) of the next block of the prompt from its tokens.
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

/// Digest of a block, of 16 or 32 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Digest {
    bytes: [u8; 32],
    len: u8,
    /// True if engines send the digest's first eight bytes as a signed integer; false if they send its last eight bytes
    /// as an unsigned integer.
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

    /// Returns all bytes of the digest.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Returns the block hash by which the index knows a block whose digest is sent in this form.
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

/// Name under which vLLM puts the cache salt into the extra keys (keys besides tokens) of a prompt's first block.
const SALT: &str = "cache_salt";

/// Opcodes of Python's pickle format.
mod op {
    pub(crate) const PROTO: [u8; 2] = [0x80, 5];
    pub(crate) const FRAME: u8 = 0x95;
    pub(crate) const SHORT_BINBYTES: u8 = b'C';
    pub(crate) const SHORT_BINUNICODE: u8 = 0x8c;
    pub(crate) const BINUNICODE: u8 = b'X';
    pub(crate) const MEMOIZE: u8 = 0x94;
    pub(crate) const MARK: u8 = b'(';
    pub(crate) const TUPLE: u8 = b't';
    pub(crate) const EMPTY_TUPLE: u8 = b')';
    pub(crate) const TUPLES: [u8; 3] = [0x85, 0x86, 0x87];
    pub(crate) const BININT: u8 = b'J';
    pub(crate) const BININT1: u8 = b'K';
    pub(crate) const BININT2: u8 = b'M';
    pub(crate) const LONG1: u8 = 0x8a;
    pub(crate) const NONE: u8 = b'N';
    pub(crate) const STOP: u8 = b'.';
}

/// Encodes a string as a Python pickle.
pub(crate) fn pickled_text(text: &str) -> Vec<u8> {
    let mut out = pickle_head();
    pickle_text(text, &mut out);
    pickle_end(&mut out);
    out
}

/// Writes a block's parent digest, tokens and cache salt as a Python pickle.
pub(crate) fn pickle_block(parent: &[u8], tokens: &[u32], salt: Option<&str>, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&pickle_head());
    out.extend_from_slice(&[op::SHORT_BINBYTES, parent.len() as u8]);
    out.extend_from_slice(parent);
    out.push(op::MEMOIZE);
    if tokens.len() > 3 {
        out.push(op::MARK);
    }
    for &token in tokens {
        match token {
            0..=0xff => out.extend_from_slice(&[op::BININT1, token as u8]),
            0x100..=0xffff => {
                out.push(op::BININT2);
                out.extend_from_slice(&(token as u16).to_le_bytes());
            }
            0x1_0000..=0x7fff_ffff => {
                out.push(op::BININT);
                out.extend_from_slice(&token.to_le_bytes());
            }
            _ => {
                out.extend_from_slice(&[op::LONG1, 5]);
                out.extend_from_slice(&token.to_le_bytes());
                out.push(0);
            }
        }
    }
    match tokens.len() {
        0 => out.push(op::EMPTY_TUPLE),
        few @ 1..=3 => out.extend_from_slice(&[op::TUPLES[few - 1], op::MEMOIZE]),
        _ => out.extend_from_slice(&[op::TUPLE, op::MEMOIZE]),
    }
    match salt {
        None => out.push(op::NONE),
        Some(salt) => {
            pickle_text(SALT, out);
            pickle_text(salt, out);
            out.extend_from_slice(&[op::TUPLES[1], op::MEMOIZE, op::TUPLES[0], op::MEMOIZE]);
        }
    }
    out.extend_from_slice(&[op::TUPLES[2], op::MEMOIZE]);
    pickle_end(out);
}

/// Returns the beginning of a pickle: its protocol version, and the header of a frame whose length is filled in later.
fn pickle_head() -> Vec<u8> {
    let mut out = Vec::with_capacity(32);
    out.extend_from_slice(&op::PROTO);
    out.push(op::FRAME);
    out.extend_from_slice(&[0; 8]);
    out
}

fn pickle_text(text: &str, out: &mut Vec<u8>) {
    match u8::try_from(text.len()) {
        Ok(len) => out.extend_from_slice(&[op::SHORT_BINUNICODE, len]),
        Err(_) => {
            out.push(op::BINUNICODE);
            out.extend_from_slice(&(text.len() as u32).to_le_bytes());
        }
    }
    out.extend_from_slice(text.as_bytes());
    out.push(op::MEMOIZE);
}

fn pickle_end(out: &mut Vec<u8>) {
    out.push(op::STOP);
    let frame = (out.len() - 11) as u64;
    out[3..11].copy_from_slice(&frame.to_le_bytes());
}

/// Major types of CBOR, which the first bits of a value encode.
mod major {
    pub(crate) const NUMBER: u8 = 0x00;
    pub(crate) const BYTES: u8 = 0x40;
    pub(crate) const TEXT: u8 = 0x60;
    pub(crate) const ARRAY: u8 = 0x80;
    pub(crate) const NULL: u8 = 0xf6;
}

/// Encodes a string in CBOR.
pub(crate) fn cbor_text(text: &str, out: &mut Vec<u8>) {
    cbor_head(major::TEXT, text.len() as u64, out);
    out.extend_from_slice(text.as_bytes());
}

/// Encodes a block's parent digest, tokens and cache salt in CBOR.
pub(crate) fn cbor_block(parent: &[u8], tokens: &[u32], salt: Option<&str>, out: &mut Vec<u8>) {
    out.clear();
    cbor_head(major::ARRAY, 3, out);
    cbor_head(major::BYTES, parent.len() as u64, out);
    out.extend_from_slice(parent);
    cbor_head(major::ARRAY, tokens.len() as u64, out);
    for &token in tokens {
        cbor_head(major::NUMBER, u64::from(token), out);
    }
    match salt {
        None => out.push(major::NULL),
        Some(salt) => {
            cbor_head(major::ARRAY, 1, out);
            cbor_head(major::ARRAY, 2, out);
            cbor_text(SALT, out);
            cbor_text(salt, out);
        }
    }
}

/// Encodes a CBOR major type with a length or number, in the fewest bytes possible.
fn cbor_head(major: u8, value: u64, out: &mut Vec<u8>) {
    match value {
        0..24 => out.push(major | value as u8),
        24..=0xff => out.extend_from_slice(&[major | 24, value as u8]),
        0x100..=0xffff => {
            out.push(major | 25);
            out.extend_from_slice(&(value as u16).to_be_bytes());
        }
        0x1_0000..=0xffff_ffff => {
            out.push(major | 26);
            out.extend_from_slice(&(value as u32).to_be_bytes());
        }
        _ => {
            out.push(major | 27);
            out.extend_from_slice(&value.to_be_bytes());
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

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn as_python_writes_it() {
        assert_eq!(hex(&pickled_text("vllm-none-hash")), "80059512000000000000008c0e766c6c6d2d6e6f6e652d68617368942e");
        let mut out = Vec::new();
        pickle_block(&[0; 4], &[1, 2, 300, 70_000], None, &mut out);
        assert_eq!(hex(&out), "8005951a0000000000000043040000000094284b014b024d2c014a7011010074944e87942e");
        pickle_block(&[0; 4], &[0x8000_0000], Some("t"), &mut out);
        assert_eq!(
            hex(&out),
            "800595280000000000000043040000000094\
        8a0500000080008594\
        8c0a63616368655f73616c74948c01749486948594\
        87942e"
                .replace(char::is_whitespace, "")
        );
        cbor_block(&[0; 4], &[1, 2, 300], None, &mut out);
        assert_eq!(hex(&out), "83440000000083010219012cf6");
    }
}
