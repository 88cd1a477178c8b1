//! How hashes are mixed and spread over the lines of a table.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// Which of `lines` a hash belongs to: its high bits choose (multiply-shift, so any number of lines will do).
#[inline]
pub(crate) fn line_of(hash: u64, lines: usize) -> usize {
    ((u128::from(hash) * lines as u128) >> 64) as usize
}

/// The next line, the first after the last.
#[inline]
pub(crate) fn line_after(line: usize, lines: usize) -> usize {
    if line + 1 == lines { 0 } else { line + 1 }
}

/// What a table mixes its hashes with. Who chooses the inputs, knows this code and has seen the secrets of other tables
/// cannot choose lines: both factors of the product are secret, and each table draws its own.
#[derive(Clone, Copy)]
pub(crate) struct Secret {
    x: u64,
    y: u64,
}

impl Secret {
    /// One that nobody has had: what a hash keyed at random by the operating system says of two numbers.
    pub(crate) fn new() -> Self {
        let keyed = RandomState::new();
        Self { x: keyed.hash_one(0), y: keyed.hash_one(1) }
    }

    /// Multiplies and folds: the mixing step of wyhash.
    #[inline]
    pub(crate) fn mix(self, x: u64, y: u64) -> u64 {
        // Odd, so that no bit of the other factor is lost; spread, so that a small `y` changes all of it.
        let y = (y ^ self.y).wrapping_mul(0xd6e8_feb8_6659_fd93) | 1;
        let product = u128::from(x ^ self.x) * u128::from(y);
        (product >> 64) as u64 ^ product as u64
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashSet;

    use kvatlas_testing::{Random, seeds};

    use super::*;

    const LINES: usize = 256;

    /// Inputs that one table puts into one line, found by trying, as one does who knows that table's secret.
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

    #[test]
    fn what_fills_one_line_of_a_table_is_spread_in_every_other() {
        for seed in 0..seeds(20) {
            let random = &mut Random(seed);
            let inputs = of_one_line(Secret::new(), LINES, random);
            let other = Secret::new();
            let mut loads = [0; LINES];
            inputs.iter().for_each(|&x| loads[line_of(other.mix(x, 0), LINES)] += 1);
            // As many balls as bins: the fullest of random ones has seldom more than 7.
            assert!(loads.iter().max() <= Some(&24), "seed {seed}: {loads:?}");
        }
    }

    #[test]
    fn inputs_that_differ_in_few_bits_are_spread() {
        for seed in 0..seeds(20) {
            let random = &mut Random(seed);
            let secret = Secret::new();
            let (start, shift) = (random.below(u64::MAX), random.below(56) as u32);
            for by in [|x, i| (x, i), |x: u64, i| (x ^ i, 0)] {
                let hashes: Vec<u64> =
                    (0..LINES as u64).map(|i| by(start, i << shift)).map(|(x, y)| secret.mix(x, y)).collect();
                let lines: HashSet<_> = hashes.iter().map(|&hash| line_of(hash, LINES)).collect();
                // Random ones fill 162 of 256, give or take seven.
                assert!(lines.len() >= 64, "seed {seed}: {} lines, shift {shift}", lines.len());
                assert_eq!(hashes.iter().collect::<HashSet<_>>().len(), LINES, "seed {seed}");
            }
        }
    }
}
