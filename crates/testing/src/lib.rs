//! Random numbers for tests, and how many random streams to try. The unit tests of the crate share it by its path.
#![allow(unreachable_pub, dead_code, reason = "several tests share this, few use all of it")]

/// SplitMix64 (Steele, Lea, Flood 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.index(from.len())]
    }
}

pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// So many seeds, or more or fewer by the environment: KVATLAS_SEEDS says what 600 are to become.
pub fn seeds(usual: u64) -> u64 {
    let scale = std::env::var("KVATLAS_SEEDS").ok().and_then(|text| text.parse::<u64>().ok()).unwrap_or(600);
    (usual * scale / 600).max(1)
}
