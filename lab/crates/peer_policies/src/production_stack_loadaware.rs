//! The load-aware policy of the vLLM production stack.

use kvatlas_routing::parts::draw::Draw;
use kvatlas_routing::parts::{compared, mean, sheet};
use kvatlas_routing::{Candidates, Choice, Error, Options, Policy, Request, Terms};

/// `loadaware` of vLLM production-stack (vllm-project/production-stack#1035, August 2026); the highest score wins.
///
/// ```text
/// score = matched tokens / prompt tokens - beta * (load - mean load) / max(1, mean load)
/// load  = requests of the worker that the router has in flight
/// ```
/// There, matched tokens come from LMCache's controller, which knows what an engine has in any of its tiers; here from
/// the index, any tier. One engine of equals is drawn; there, the first.
pub(crate) struct LoadAware {
    beta: f64,
    draw: Draw,
}

impl LoadAware {
    pub(crate) fn new(options: &mut Options, seed: u64) -> Result<Self, Error> {
        Ok(Self { beta: options.number("beta", 1.0, 0.0, 1e6)?, draw: Draw::new(seed) })
    }

    fn terms(&self, request: &Request<'_>, candidates: &Candidates) -> Terms {
        let mean = mean(candidates.requests.iter().map(|&count| f64::from(count)));
        sheet(["matched share", "relative load", "score (highest)"], candidates.len(), |row| {
            let tokens = f64::from(candidates.any_blocks[row]) * f64::from(request.block_size);
            let matched = (tokens / f64::from(request.tokens.max(1))).min(1.0);
            let load = (f64::from(candidates.requests[row]) - mean) / mean.max(1.0);
            [matched, load, matched - self.beta * load]
        })
    }
}

impl Policy for LoadAware {
    fn name(&self) -> &'static str {
        "production-stack-loadaware"
    }

    fn uses_index(&self) -> bool {
        true
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &Candidates, _now: f64) -> Choice {
        let scores = compared(&self.terms(request, candidates));
        Choice::Row(self.draw.lowest(0..scores.len(), |row| -scores[row]).unwrap_or(0))
    }

    fn explain(&self, request: &Request<'_>, candidates: &Candidates, _now: f64) -> Option<Terms> {
        Some(self.terms(request, candidates))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fleet;

    #[test]
    fn a_full_hit_is_worth_one_mean_of_load() {
        let mut policy = LoadAware::new(&mut Options::default(), 0).unwrap();
        let mut candidates = fleet(2);
        let request = Request { tokens: 100, block_size: 10, content_hashes: &[0; 10], ..Request::default() };
        candidates.any_blocks = vec![8, 0];
        candidates.requests = vec![5, 3];
        // Mean 4. Scores 0.8 - 1/4 = 0.55 and 0 + 1/4 = 0.25.
        let terms = policy.explain(&request, &candidates, 0.0).unwrap();
        assert_eq!(terms.values, [0.8, 0.25, 0.55, 0.0, -0.25, 0.25]);
        assert_eq!(policy.choose(&request, &candidates, 0.0), Choice::Row(0));
        // Mean 4. 0.8 - 2/4 = 0.3 and 0.5.
        candidates.requests = vec![6, 2];
        assert_eq!(policy.choose(&request, &candidates, 0.0), Choice::Row(1));
    }
}
