//! Routing policy `round-robin`: picks the workers in turn.

use std::collections::BTreeMap;

use crate::candidates::Candidates;
use crate::options::{Error, Options};
use crate::parts::weight;
use crate::policy::{Choice, Policy};
use crate::request::Request;

/// Routing policy that picks the workers in turn, each with a frequency proportional to its weight. With each request
/// every candidate gets its weight as credit; the one with the most credit takes the request and loses the sum of all
/// weights as credit (the smooth weighted round robin of nginx). With equal weights this is plain round robin.
pub(super) struct RoundRobin {
    credit: BTreeMap<u32, f64>,
}

impl RoundRobin {
    pub(super) fn new(_options: &mut Options, _seed: u64) -> Result<Self, Error> {
        Ok(Self { credit: BTreeMap::new() })
    }

    fn after(&self, candidates: &Candidates, row: usize) -> f64 {
        let had = self.credit.get(&candidates.worker[row]).copied().unwrap_or(0.0);
        had + weight(candidates.weight[row])
    }
}

impl Policy for RoundRobin {
    fn name(&self) -> &'static str {
        "round-robin"
    }

    fn uses_index(&self) -> bool {
        false
    }

    fn choose(&mut self, _request: &Request<'_>, candidates: &Candidates, _now: f64) -> Choice {
        let mut best = 0;
        for row in 1..candidates.len() {
            if self.after(candidates, row) > self.after(candidates, best) + 1e-9 {
                best = row;
            }
        }
        Choice::Row(best)
    }

    fn sent(&mut self, _request: &Request<'_>, candidates: &Candidates, row: usize, _now: f64) {
        let mut all = 0.0;
        for row in 0..candidates.len() {
            let credit = self.after(candidates, row);
            self.credit.insert(candidates.worker[row], credit);
            all += weight(candidates.weight[row]);
        }
        if let Some(credit) = self.credit.get_mut(&candidates.worker[row]) {
            *credit -= all;
        }
    }

    fn left(&mut self, worker: u32) {
        self.credit.remove(&worker);
    }

    fn remembered(&self) -> (usize, usize) {
        (0, self.credit.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::testing::{fleet, send};

    fn turns(policy: &mut RoundRobin, candidates: &Candidates, count: u64) -> Vec<usize> {
        (0..count).map(|number| send(policy, &Request { number, ..Request::default() }, candidates, 0.0)).collect()
    }

    #[test]
    fn equals_take_turns() {
        let mut policy = RoundRobin::new(&mut Options::default(), 0).unwrap();
        assert_eq!(turns(&mut policy, &fleet(3), 7), [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn a_weight_of_two_is_two_turns_of_four() {
        let mut policy = RoundRobin::new(&mut Options::default(), 0).unwrap();
        let mut candidates = fleet(3);
        candidates.weight = vec![2.0, 1.0, 1.0];
        // Credits before each choice: 2 1 1, then -2+2 1+1 1+1 = 0 2 2, then 2 -1 3, then 4 0 0, then 2 1 1 again.
        assert_eq!(turns(&mut policy, &candidates, 5), [0, 1, 2, 0, 0]);
    }
}
