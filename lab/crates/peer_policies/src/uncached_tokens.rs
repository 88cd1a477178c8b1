//! GORGO and LMetric: policies from papers whose cost is the number of tokens left to prefill at a worker.

use kvatlas_routing::parts::draw::Draw;
use kvatlas_routing::parts::{compared, sheet};
use kvatlas_routing::{Candidates, Choice, Error, Options, Policy, Request, Terms};

/// The policy GORGO (arXiv 2602.11688), as its router computes it (github.com/atoniolo76/gotoni, March 2026). The
/// worker with the lowest cost is chosen, any among equals.
///
/// ```text
/// cost = tokens of the prompt that the worker does not hold
///        + running_factor * tokens of requests that run there + tokens to compute of requests without a first token
/// ```
/// GORGO's cost is in milliseconds, with one time per token for all workers and the network's latency to each;
/// latencies are taken as equal here. Left out: GORGO's gate before the workers, which lets ten requests run at each.
pub(crate) struct Gorgo {
    running: f64,
    draw: Draw,
}

impl Gorgo {
    pub(crate) fn new(options: &mut Options, seed: u64) -> Result<Self, Error> {
        Ok(Self { running: options.number("running_factor", 0.5, 0.0, 1e3)?, draw: Draw::new(seed) })
    }

    fn terms(&self, request: &Request<'_>, candidates: &Candidates) -> Terms {
        let names = ["uncached tokens", "running tokens", "queued tokens", "cost (lowest)"];
        sheet(names, candidates.len(), |row| {
            let uncached = f64::from(request.uncached(candidates.device_blocks[row]));
            let running = (candidates.context_tokens[row] - candidates.queued_prompt_tokens[row]).max(0.0);
            let queued = candidates.queued_tokens[row].max(0.0);
            [uncached, running, queued, uncached + self.running * running + queued]
        })
    }
}

impl Policy for Gorgo {
    fn name(&self) -> &'static str {
        "gorgo"
    }

    fn uses_index(&self) -> bool {
        true
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &Candidates, _now: f64) -> Choice {
        let costs = compared(&self.terms(request, candidates));
        Choice::Row(self.draw.lowest(0..costs.len(), |row| costs[row]).unwrap_or(0))
    }

    fn explain(&self, request: &Request<'_>, candidates: &Candidates, _now: f64) -> Option<Terms> {
        Some(self.terms(request, candidates))
    }
}

/// The policy LMetric (arXiv 2603.15202, and Dynamo's port of it, autumn 2026). The worker with the lowest cost is
/// chosen, any among equals.
///
/// ```text
/// cost = max(1, tokens of the prompt that the worker does not hold [+ tokens to compute of requests without a first token])
///        * (requests + 1)
/// ```
/// With `queued` the tokens of waiting prompts count too, as in the paper. Left out: the paper's detector of hot
/// prefixes.
pub(crate) struct LMetric {
    queued: bool,
    draw: Draw,
}

impl LMetric {
    pub(crate) fn new(options: &mut Options, seed: u64) -> Result<Self, Error> {
        Ok(Self { queued: options.flag("queued", false)?, draw: Draw::new(seed) })
    }

    fn terms(&self, request: &Request<'_>, candidates: &Candidates) -> Terms {
        sheet(["tokens", "requests", "tokens x (requests + 1) (lowest)"], candidates.len(), |row| {
            let waiting = if self.queued { candidates.queued_tokens[row].max(0.0) } else { 0.0 };
            let uncached = request.tokens.saturating_sub(candidates.device_blocks[row] * request.block_size);
            let tokens = (f64::from(uncached) + waiting).max(1.0);
            let requests = f64::from(candidates.requests[row]);
            [tokens, requests, tokens * (requests + 1.0)]
        })
    }
}

impl Policy for LMetric {
    fn name(&self) -> &'static str {
        "lmetric"
    }

    fn uses_index(&self) -> bool {
        true
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &Candidates, _now: f64) -> Choice {
        let costs = compared(&self.terms(request, candidates));
        Choice::Row(self.draw.lowest(0..costs.len(), |row| costs[row]).unwrap_or(0))
    }

    fn explain(&self, request: &Request<'_>, candidates: &Candidates, _now: f64) -> Option<Terms> {
        Some(self.terms(request, candidates))
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::{blocks, fleet};
    use crate::uncached_tokens::*;

    #[test]
    fn what_runs_counts_half_of_what_waits() {
        let mut candidates = fleet(3);
        candidates.device_blocks = vec![4, 2, 0];
        candidates.context_tokens = vec![100.0, 40.0, 0.0];
        candidates.queued_prompt_tokens = vec![0.0, 40.0, 0.0];
        candidates.queued_tokens = vec![0.0, 15.0, 0.0];
        let prompt = blocks(10, &[1, 2, 3, 4, 5]);
        // 10 + 100 / 2; 30 + 15; 50.
        let mut policy = Gorgo::new(&mut Options::default(), 0).unwrap();
        assert_eq!(compared(&policy.explain(&prompt, &candidates, 0.0).unwrap()), [60.0, 45.0, 50.0]);
        assert_eq!(policy.choose(&prompt, &candidates, 0.0), Choice::Row(1));
        let mut policy = Gorgo::new(&mut Options::from_json(r#"{"running_factor": 0}"#).unwrap(), 0).unwrap();
        assert_eq!(policy.choose(&prompt, &candidates, 0.0), Choice::Row(0));
    }

    #[test]
    fn uncached_tokens_are_multiplied_with_requests() {
        let mut candidates = fleet(3);
        candidates.device_blocks = vec![4, 3, 0];
        candidates.requests = vec![30, 1, 0];
        candidates.queued_tokens = vec![0.0, 50.0, 0.0];
        let prompt = blocks(10, &[1, 2, 3, 4]);
        // 1 * 31, 10 * 2, 40 * 1.
        let mut policy = LMetric::new(&mut Options::default(), 0).unwrap();
        assert_eq!(compared(&policy.explain(&prompt, &candidates, 0.0).unwrap()), [31.0, 20.0, 40.0]);
        assert_eq!(policy.choose(&prompt, &candidates, 0.0), Choice::Row(1));
        // With what waits: 1 * 31, 60 * 2, 40 * 1.
        let mut policy = LMetric::new(&mut Options::from_json(r#"{"queued": true}"#).unwrap(), 0).unwrap();
        assert_eq!(policy.choose(&prompt, &candidates, 0.0), Choice::Row(0));
    }
}
