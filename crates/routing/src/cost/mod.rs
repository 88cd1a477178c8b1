//! Our own policy, `kvatlas`: the candidate of least expected harm, in seconds.
//!
//! ```text
//! cost = wait               prompts before it there, and how late the first of them is
//!      + room               until running requests have left room for it
//!      + prefill            its own tokens that are not in that cache
//!      + others delayed     requests that generate there wait while it is computed, and prompts in the same step
//!      + later delayed      what it computes, nobody else computes: the more wait in the fleet, the worse
//!      + pushed out         what its new blocks push out has to be computed again some day
//! ```
//!
//! A request of which nobody holds anything goes by the same sum, and a little away from where such a one went last.
//! While every candidate has more than `hold` seconds queued, it waits in the router.

mod harm;
mod weights;

pub use weights::Weights;

use crate::candidates::Candidates;
use crate::error::Error;
use crate::options::Options;
use crate::policy::{Choice, Policy, Terms};
use crate::request::Request;
use crate::rng::Rng;
use harm::{Harm, NAMES, Scene, queue};

/// Costs that differ by less, in seconds, are equal: chance decides.
const EQUAL: f64 = 1e-9;

/// The policy `kvatlas`.
pub(crate) struct Kvatlas {
    weights: Weights,
    rng: Rng,
    costs: Vec<f64>,
}

impl Kvatlas {
    pub(crate) fn new(options: &mut Options, seed: u64) -> Result<Self, Error> {
        Ok(Self { weights: Weights::take(options)?, rng: Rng::new(seed), costs: Vec::new() })
    }

    /// The row that takes a request.
    fn cheapest(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) -> usize {
        let scene = Scene::new(&self.weights, request, candidates, now);
        self.costs.clear();
        let weights = &self.weights;
        self.costs.extend((0..candidates.len()).map(|row| Harm::of(weights, &scene, request, candidates, row).sum()));
        if self.weights.temperature > 0.0 { self.drawn() } else { self.least() }
    }

    /// The row of the least cost, by chance among equals.
    fn least(&mut self) -> usize {
        let least = self.costs.iter().copied().fold(f64::INFINITY, f64::min);
        let equal = |cost: &f64| *cost <= least + EQUAL;
        let among = self.costs.iter().filter(|cost| equal(cost)).count();
        let nth = if among > 1 { (self.rng.unit() * among as f64) as usize } else { 0 };
        self.costs.iter().enumerate().filter(|(_, cost)| equal(cost)).nth(nth).map_or(0, |(row, _)| row)
    }

    /// A row, the less often the more it costs.
    fn drawn(&mut self) -> usize {
        let least = self.costs.iter().copied().fold(f64::INFINITY, f64::min);
        let temperature = self.weights.temperature;
        let mut sum = 0.0;
        for cost in &mut self.costs {
            sum += (-(*cost - least) / temperature).exp();
            *cost = sum;
        }
        let at = self.rng.unit() * sum;
        self.costs.iter().position(|upto| at < *upto).unwrap_or(0)
    }
}

impl Policy for Kvatlas {
    fn name(&self) -> &'static str {
        "kvatlas"
    }

    fn uses_index(&self) -> bool {
        true
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Choice {
        if self.weights.hold > 0.0 && !self.has_room(candidates) {
            return Choice::Wait;
        }
        Choice::Row(self.cheapest(request, candidates, now))
    }

    fn choose_now(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Option<usize> {
        Some(self.cheapest(request, candidates, now))
    }

    fn has_room(&self, candidates: &Candidates) -> bool {
        let hold = self.weights.hold;
        hold <= 0.0 || (0..candidates.len()).any(|row| queue(&self.weights, candidates, row) <= hold)
    }

    fn explain(&self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Option<Terms> {
        let scene = Scene::new(&self.weights, request, candidates, now);
        let row = |row| Harm::of(&self.weights, &scene, request, candidates, row).row();
        Some(Terms { names: NAMES.to_vec(), values: (0..candidates.len()).flat_map(row).collect() })
    }
}
