//! Helpers for tests: random numbers, the number of seeds to test, and fuzzing for a given time.

use std::time::{Duration, Instant};

/// A random number generator: SplitMix64 (Steele, Lea, Flood 2014).
pub struct Random(
    /// State of the generator; initially the seed.
    pub u64,
);

impl Random {
    /// Returns the next 64 random bits.
    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a random number from 0 to `n` - 1; `n` must not be 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Returns a random index into a list of length `n`, which must not be 0.
    pub fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    /// Returns true with a probability of `percent` percent.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns a random item of a list, which must not be empty.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.index(from.len())]
    }
}

/// Computes the output function of SplitMix64, which maps different numbers to different, seemingly random numbers.
#[must_use]
pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Returns the number of random seeds to test: `usual`, scaled by the environment variable `KVATLAS_SEEDS` in
/// proportion to its default 600.
#[must_use]
pub fn seeds(usual: u64) -> u64 {
    let scale = std::env::var("KVATLAS_SEEDS").ok().and_then(|text| text.parse::<u64>().ok()).unwrap_or(600);
    (usual * scale / 600).max(1)
}

/// Runs a fuzzer as the main function of a program. Calls `check` with one seed after another, beginning with the
/// argument `--seed` (default 2^32), for `--minutes` minutes (default 5). The first seed for which `check` returns an
/// error ends the process with status 1.
pub fn fuzz(mut check: impl FnMut(u64) -> Result<(), String>) {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |flag: &str| arguments.iter().position(|a| a == flag).and_then(|at| arguments.get(at + 1));
    let number = |flag, default| after(flag).map_or(Ok(default), |text| text.parse::<u64>());
    let (Ok(minutes), Ok(first)) = (number("--minutes", 5), number("--seed", 1 << 32)) else {
        eprintln!("usage: fuzz [--minutes N] [--seed FIRST]   (whole numbers)");
        std::process::exit(2);
    };
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    let mut seed = first;
    while Instant::now() < end {
        if let Err(what) = check(seed) {
            eprintln!("seed {seed}: {what}");
            std::process::exit(1);
        }
        seed += 1;
    }
    eprintln!("{} seeds, nothing wrong", seed - first);
}
