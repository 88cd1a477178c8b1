//! Routing policy `least-loaded`: picks the worker with the least load.

use crate::candidates::Candidates;
use crate::options::{Error, Options};
use crate::parts::draw::Draw;
use crate::parts::{sheet, weight};
use crate::policy::{Choice, Policy, Terms};
use crate::request::Request;

/// Routing policy that picks the worker with the least load relative to its weight; among equals the one with the
/// fewest requests, then a random one.
///
/// ```text
/// load = prompt tokens of requests without a first token / weight        (by = tokens)
/// load = requests in flight / weight                                     (by = requests)
/// ```
/// The policy ignores caches, so cached tokens of a prompt count too. `by = requests` is called least loaded or least
/// requests in other routers (Dynamo's `least-loaded`, AIBrix's `least-request`).
pub(super) struct LeastLoaded {
    by_tokens: bool,
    draw: Draw,
}

impl LeastLoaded {
    pub(super) fn new(options: &mut Options, seed: u64) -> Result<Self, Error> {
        Ok(Self { by_tokens: options.word("by", &["tokens", "requests"])? == "tokens", draw: Draw::new(seed) })
    }

    fn load(&self, candidates: &Candidates, row: usize) -> (f64, f64) {
        let requests = f64::from(candidates.requests[row]) / weight(candidates.weight[row]);
        if !self.by_tokens {
            return (requests, 0.0);
        }
        (candidates.queued_prompt_tokens[row].max(0.0) / weight(candidates.weight[row]), requests)
    }
}

impl Policy for LeastLoaded {
    fn name(&self) -> &'static str {
        "least-loaded"
    }

    fn uses_index(&self) -> bool {
        false
    }

    fn choose(&mut self, _request: &Request<'_>, candidates: &Candidates, _now: f64) -> Choice {
        let mut draw = self.draw.clone();
        let row = draw.lowest(0..candidates.len(), |row| self.load(candidates, row)).unwrap_or(0);
        self.draw = draw;
        Choice::Row(row)
    }

    fn explain(&self, _request: &Request<'_>, candidates: &Candidates, _now: f64) -> Option<Terms> {
        let load = if self.by_tokens { "prompt tokens waiting (lowest)" } else { "requests (lowest)" };
        Some(sheet(["then requests", load], candidates.len(), |row| {
            let (load, requests) = self.load(candidates, row);
            [requests, load]
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::testing::fleet;

    fn choose(options: &str, candidates: &Candidates) -> Choice {
        let mut policy = LeastLoaded::new(&mut Options::from_json(options).unwrap(), 0).unwrap();
        policy.choose(&Request::default(), candidates, 0.0)
    }

    #[test]
    fn work_counts_or_requests() {
        let mut candidates = fleet(3);
        candidates.queued_prompt_tokens = vec![500.0, 100.0, 100.0];
        candidates.requests = vec![1, 4, 3];
        assert_eq!(choose("", &candidates), Choice::Row(2));
        assert_eq!(choose(r#"{"by": "requests"}"#, &candidates), Choice::Row(0));
        // 500 / 10 = 50 is less than 100.
        candidates.weight = vec![10.0, 1.0, 1.0];
        assert_eq!(choose("", &candidates), Choice::Row(0));
    }
}
