//! Routing policy `power-of-two`: picks the less loaded of two random workers.

use crate::candidates::Candidates;
use crate::options::{Error, Options};
use crate::parts::draw::{Draw, better_of_two};
use crate::parts::weight;
use crate::policy::{Choice, Policy};
use crate::request::Request;

/// Routing policy that draws two workers at random, and picks the one with fewer requests in flight relative to its
/// weight (Mitzenmacher 2001).
///
/// The policy equals `power_of_two` of vllm-router (docs/load_balancing) and sglang-router. It is also the default of
/// Ray Serve, which compares queue lengths up to 10 s old; this policy uses the router's own current counts.
pub(super) struct PowerOfTwo {
    draw: Draw,
}

impl PowerOfTwo {
    pub(super) fn new(_options: &mut Options, seed: u64) -> Result<Self, Error> {
        Ok(Self { draw: Draw::new(seed) })
    }
}

impl Policy for PowerOfTwo {
    fn name(&self) -> &'static str {
        "power-of-two"
    }

    fn uses_index(&self) -> bool {
        false
    }

    fn choose(&mut self, _request: &Request<'_>, candidates: &Candidates, _now: f64) -> Choice {
        let rows: Vec<usize> = (0..candidates.len()).collect();
        let load = |row: usize| f64::from(candidates.requests[row]) / weight(candidates.weight[row]);
        Choice::Row(better_of_two(&mut self.draw, &rows, load))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::testing::fleet;

    #[test]
    fn the_most_loaded_is_never_taken_and_the_least_in_most_pairs() {
        let mut policy = PowerOfTwo::new(&mut Options::default(), 5).unwrap();
        let mut candidates = fleet(3);
        candidates.requests = vec![3, 1, 2];
        let mut counts = [0; 3];
        for _ in 0..3000 {
            let Choice::Row(row) = policy.choose(&Request::default(), &candidates, 0.0) else { panic!() };
            counts[row] += 1;
        }
        // Of the three pairs, row 1 wins two and row 2 one.
        assert_eq!(counts[0], 0);
        assert!((1850..2150).contains(&counts[1]), "{counts:?}");
    }
}
