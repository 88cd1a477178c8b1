//! Prefix hashes of the prefix table: XXH64 of the hash before and the bytes of a block, chained from the table's seed.
//!
//! The definition is AIBrix's: `p[i] = XXH64(seed; p[i-1] as 8 little-endian bytes ‖ block i)`, `p[-1] = seed`; blocks
//! have a fixed number of bytes, and an incomplete block at the end has no hash.

use xxhash_rust::xxh64::xxh64;

/// Appends the prefix hash of each full block of `bytes` to `hashes`. `parent`: the prefix hash before the first block.
pub(super) fn extend(seed: u64, parent: u64, bytes: &[u8], block_size: usize, hashes: &mut Vec<u64>) {
    // Usual blocks, of 4, 16 or 32 tokens, have a size known to the compiler: the copy is then a few moves, and only
    // the chain of hashes takes time.
    match block_size {
        16 => chain::<16, 24>(seed, parent, bytes, hashes),
        64 => chain::<64, 72>(seed, parent, bytes, hashes),
        128 => chain::<128, 136>(seed, parent, bytes, hashes),
        _ => {
            let mut parent = parent;
            let mut buffer = vec![0; block_size + 8];
            for block in bytes.chunks_exact(block_size) {
                buffer[..8].copy_from_slice(&parent.to_le_bytes());
                buffer[8..].copy_from_slice(block);
                parent = xxh64(&buffer, seed);
                hashes.push(parent);
            }
        }
    }
}

fn chain<const BLOCK: usize, const ALL: usize>(seed: u64, mut parent: u64, bytes: &[u8], hashes: &mut Vec<u64>) {
    for block in bytes.as_chunks::<BLOCK>().0 {
        let mut buffer = [0; ALL];
        buffer[..8].copy_from_slice(&parent.to_le_bytes());
        buffer[8..].copy_from_slice(block);
        parent = xxh64(&buffer, seed);
        hashes.push(parent);
    }
}

/// Hashes a number by multiplying and folding, as in wyhash. `secret`: random number that keeps clients from choosing
/// keys that collide.
#[inline]
pub(super) fn mix(key: u64, secret: u64) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(0xd6e8_feb8_6659_fd93) | 1;
    let product = u128::from(key ^ secret) * u128::from(FACTOR);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_hashes_alike() {
        let bytes: Vec<u8> = (0..1000_u32).map(|i| (i * 7) as u8).collect();
        for size in [1, 3, 15, 16, 17, 31, 32, 64, 100, 128, 512, 1000, 1001] {
            let (mut hashes, mut parent) = (Vec::new(), 42_u64);
            extend(42, 42, &bytes, size, &mut hashes);
            assert_eq!(hashes.len(), 1000 / size);
            for (at, hash) in hashes.iter().enumerate() {
                let mut whole = parent.to_le_bytes().to_vec();
                whole.extend(&bytes[at * size..(at + 1) * size]);
                parent = xxh64(&whole, 42);
                assert_eq!(*hash, parent);
            }
        }
    }

    #[test]
    fn the_published_vector_of_the_algorithm() {
        assert_eq!(xxh64(b"", 0), 0xef46_db37_51d8_e999);
        assert_eq!(xxh64(b"abc", 0), 0x44bc_2cf5_ad77_0999);
    }
}
