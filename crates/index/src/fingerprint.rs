//! Fingerprints: a 64-bit word that identifies the set of blocks that a rank holds.
//!
//! A fingerprint is the sum of a mixed value of each held pair of tier and block hash. The sum does not depend on the
//! order in which blocks were stored, so two indexes that have applied the same events have equal fingerprints, however
//! the events of different streams were interleaved. A stored or removed block changes it without reading other blocks.
//!
//! A block hash identifies a block and all blocks before it. Contents and numbers of copies are not part of the
//! fingerprint; to compare them, copy both indexes ([`crate::RankCopier`]).

use crate::types::Tier;

/// Keys with which each tier's block hashes are mixed. They are public, as two services must compute the same
/// fingerprints. A client that forges a fingerprint gains nothing that it could not gain by forging events.
const KEYS: [u64; Tier::ALL.len()] =
    [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344, 0xa409_3822_299f_31d0, 0x082e_fa98_ec4e_6c89];
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Value that one block adds to the fingerprint of its rank: a mix of tier and block hash.
#[inline]
pub(crate) fn word(tier: Tier, name: u64) -> u64 {
    // Both factors depend on the block hash: with one constant factor, sums of small block hashes would often be equal.
    // The halves are mixed, not added, as sums of squares would be equal too easily.
    let product = u128::from(name ^ KEYS[tier as usize]) * u128::from(name.rotate_left(29) ^ FACTOR);
    (product >> 64) as u64 ^ product as u64
}

/// Sum of the values that several blocks on a tier, given by their block hashes, add to a rank's fingerprint.
#[inline]
pub(crate) fn words(tier: Tier, names: &[u64]) -> u64 {
    names.iter().fold(0, |sum, &name| sum.wrapping_add(word(tier, name)))
}

/// Fingerprint of a rank, from the sum of the values that its device blocks add, and those sums for its other tiers.
pub(crate) fn of_rank(device: u64, others: [u64; Tier::ALL.len() - 1]) -> u64 {
    others.into_iter().fold(device, u64::wrapping_add)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn small_numbers_have_words_of_their_own() {
        let mut seen = HashSet::new();
        for name in 0..20_000 {
            for tier in Tier::ALL {
                assert!(seen.insert(word(tier, name)), "{tier} {name}");
            }
        }
        // Nor do sums of two of them come twice.
        let mut sums = HashSet::new();
        for a in 0..400 {
            for b in 0..a {
                assert!(sums.insert(words(Tier::Gpu, &[a, b])), "{a} {b}");
            }
        }
        // With equal sums, sums of squares, and sums of cubes.
        let (one, other) = ([0, 7, 11, 13, 14, 19, 21, 22], [1, 4, 5, 10, 16, 18, 20, 23]);
        for shift in [0, 8, 40] {
            let shifted = |names: [u64; 8]| names.map(|name| name << shift);
            assert_ne!(words(Tier::Gpu, &shifted(one)), words(Tier::Gpu, &shifted(other)));
        }
    }
}
