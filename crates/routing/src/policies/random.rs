//! Any worker.

use crate::candidates::Candidates;
use crate::error::Error;
use crate::options::Options;
use crate::policy::{Choice, Policy};
use crate::request::Request;

/// Any worker, each as likely as the others.
pub(super) struct Random {
    state: u64,
}

impl Random {
    pub(super) fn new(_options: &mut Options, seed: u64) -> Result<Self, Error> {
        Ok(Self { state: seed })
    }
}

impl Policy for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn uses_index(&self) -> bool {
        false
    }

    fn choose(&mut self, _request: &Request<'_>, candidates: &Candidates, _now: f64) -> Choice {
        Choice::Row(below(&mut self.state, candidates.len()))
    }
}

/// A number below `bound`, which is above 0: `SplitMix64` (Steele, Lea, Flood 2014).
pub(super) fn below(state: &mut u64, bound: usize) -> usize {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    let wide = u128::from(z) * bound as u128;
    usize::try_from(wide >> 64).unwrap_or(0)
}
