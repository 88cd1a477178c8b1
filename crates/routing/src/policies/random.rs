//! Routing policy `random`: picks a random worker.

use crate::candidates::Candidates;
use crate::options::{Error, Options};
use crate::parts::draw::Draw;
use crate::parts::weight;
use crate::policy::{Choice, Policy};
use crate::request::Request;

/// Routing policy that picks a random worker, with a probability proportional to the worker's weight.
pub(super) struct Random {
    draw: Draw,
}

impl Random {
    pub(super) fn new(_options: &mut Options, seed: u64) -> Result<Self, Error> {
        Ok(Self { draw: Draw::new(seed) })
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
        let weights: Vec<f64> = candidates.weight.iter().map(|&share| weight(share)).collect();
        Choice::Row(self.draw.in_proportion(&weights))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::testing::fleet;

    #[test]
    fn each_is_taken_by_its_weight() {
        let mut policy = Random::new(&mut Options::default(), 1).unwrap();
        let mut candidates = fleet(3);
        candidates.weight = vec![1.0, 2.0, 1.0];
        let mut counts = [0; 3];
        for _ in 0..4000 {
            let Choice::Row(row) = policy.choose(&Request::default(), &candidates, 0.0) else { panic!() };
            counts[row] += 1;
        }
        // Shares 1/4, 1/2, 1/4.
        assert!((850..1150).contains(&counts[0]) && (1850..2150).contains(&counts[1]), "{counts:?}");
    }
}
