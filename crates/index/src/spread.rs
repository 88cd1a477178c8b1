//! Mixing of hashes with a secret, and the choice of a hash table's line by a hash.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// Line of a table with `lines` lines that a hash belongs to, chosen by the hash's high bits (multiply-shift, for any
/// number of lines).
#[inline]
pub(crate) fn line_of(hash: u64, lines: usize) -> usize {
    ((u128::from(hash) * lines as u128) >> 64) as usize
}

/// Number of the line after a line of a hash table; the first line follows the last.
#[inline]
pub(crate) fn line_after(line: usize, lines: usize) -> usize {
    if line + 1 == lines { 0 } else { line + 1 }
}

/// Secret with which a hash table mixes its hashes. An attacker who chooses the inputs, knows this code and has seen
/// the secrets of other tables cannot choose lines: both factors of the product are secret, and each table draws its
/// own secret.
#[derive(Clone, Copy)]
pub(crate) struct Secret {
    x: u64,
    y: u64,
}

impl Secret {
    /// Creates a random secret from the operating system's random generator.
    pub(crate) fn new() -> Self {
        let keyed = RandomState::new();
        Self { x: keyed.hash_one(0), y: keyed.hash_one(1) }
    }

    /// Mixes two numbers by two rounds of multiplication and folding, the mixing step of wyhash. One round would keep
    /// consecutive numbers at equal distances, and for three secrets in ten thousand these are so small that one part
    /// of a table gets most of the numbers.
    #[inline]
    pub(crate) fn mix(self, x: u64, y: u64) -> u64 {
        fold(self.mix_hash(x, y), self.x | 1)
    }

    /// Mixes two numbers by one round of multiplication and folding, which is enough if `x` is a hash.
    #[inline]
    pub(crate) fn mix_hash(self, x: u64, y: u64) -> u64 {
        // Odd, so that no bit of the other factor is lost; spread, so that a small `y` changes all of it.
        let y = (y ^ self.y).wrapping_mul(0xd6e8_feb8_6659_fd93) | 1;
        fold(x ^ self.x, y)
    }
}

/// Multiplies two numbers to 128 bits, and returns the xor of the lower and the upper 64 bits.
#[inline]
fn fold(x: u64, y: u64) -> u64 {
    let product = u128::from(x) * u128::from(y);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashSet;

    use kvatlas_testing::{Random, seeds};

    use super::*;

    const LINES: usize = 256;

    /// Numbers that a table with this secret puts into one line, found by trial, as an attacker who knows the secret
    /// could do.
    fn of_one_line(secret: Secret, count: usize, random: &mut Random) -> Vec<u64> {
        let mut found = Vec::new();
        let step = random.below(1 << 20) | 1;
        let mut x = random.below(u64::MAX);
        while found.len() < count {
            x = x.wrapping_add(step);
            if line_of(secret.mix(x, 0), LINES) == 0 {
                found.push(x);
            }
        }
        found
    }

    /// Median of the results of `of` for many secrets. If hashes are mixed by one multiplication, some secrets are poor
    /// for some inputs, but a client that chooses inputs does not know which secrets.
    fn median(of: impl Fn(Secret) -> usize) -> usize {
        let mut all: Vec<_> = (0..65).map(|_| of(Secret::new())).collect();
        all.sort_unstable();
        all[all.len() / 2]
    }

    fn lines_of(hashes: impl Iterator<Item = u64>) -> usize {
        hashes.map(|hash| line_of(hash, LINES)).collect::<HashSet<_>>().len()
    }

    #[test]
    fn no_secret_leaves_numbers_that_follow_each_other_together() {
        // The secrets' first factor is 1, 3 or nearly a power of two, which leaves small numbers small.
        let inverse = {
            let factor = 0xd6e8_feb8_6659_fd93_u64;
            (0..6).fold(factor, |found, _| found.wrapping_mul(2u64.wrapping_sub(factor.wrapping_mul(found))))
        };
        for first in [1, 3, (1 << 32) | 1] {
            for seed in 0..seeds(20) {
                let x = Random(seed).below(u64::MAX);
                let secret = Secret { x, y: inverse.wrapping_mul(first) };
                let lower = (1..16_000).filter(|&name| line_of(secret.mix(name, 0), LINES) < LINES / 2).count();
                assert!((7_000..9_000).contains(&lower), "{lower} of 16,000 with {first} and {x}");
            }
        }
    }

    // Random hashes fill 162 of the 256 lines, give or take seven.

    #[test]
    fn what_fills_one_line_of_a_table_is_spread_in_others() {
        for seed in 0..seeds(20) {
            let inputs = of_one_line(Secret::new(), LINES, &mut Random(seed));
            let lines = median(|other| lines_of(inputs.iter().map(|&x| other.mix(x, 0))));
            assert!(lines >= 64, "seed {seed}: {lines} lines");
        }
    }

    #[test]
    fn inputs_that_differ_in_few_bits_are_spread() {
        for seed in 0..seeds(20) {
            let random = &mut Random(seed);
            let (start, shift) = (random.below(u64::MAX), random.below(56) as u32);
            for by in [|x, i| (x, i), |x: u64, i| (x ^ i, 0)] {
                let inputs = (0..LINES as u64).map(|i| by(start, i << shift));
                let lines = median(|secret| lines_of(inputs.clone().map(|(x, y)| secret.mix(x, y))));
                assert!(lines >= 64, "seed {seed}: {lines} lines, shift {shift}");
            }
        }
    }
}
