//! Explanation of a decision that is not taken.

use crate::depths::Depths;
use crate::policy::Terms;
use crate::request::Request;
use crate::router::Router;
use crate::router::outcome::WorkerId;

/// An explanation of what a router would decide, and why: a row for each candidate.
#[derive(Debug, Clone, Default)]
pub struct Explanation {
    /// The candidates, by number.
    pub workers: Vec<WorkerId>,
    /// Prompt tokens that each is expected to have in its cache.
    pub cached_tokens: Vec<u32>,
    /// The policy's terms, if it has any.
    pub terms: Option<Terms>,
}

impl Router {
    /// Explains how the policy sees the candidates for a request, without any effect.
    pub fn explain(
        &mut self,
        request: &Request<'_>,
        depths: &Depths,
        allowed: Option<&[WorkerId]>,
        now: f64,
    ) -> Explanation {
        let now = self.at(now);
        let request = Request { number: self.number + 1, ..self.complete(request) };
        let guessed = self.guess(&request, now);
        let depths = guessed.as_ref().unwrap_or(depths);
        if !self.gather(&request, depths, allowed, now) {
            return Explanation::default();
        }
        self.hold_back(now);
        let (policy, who) = (&self.policy, &self.who);
        let candidates = self.fleet.candidates(depths, Some(&self.expected), (!who.is_empty()).then_some(who), now);
        let cached = |row: usize| -> u32 {
            let depth = candidates.predicted_blocks[row].max(candidates.any_blocks[row]);
            request.tokens - request.uncached(depth)
        };
        let explanation = Explanation {
            workers: candidates.worker.iter().map(|&worker| WorkerId(worker)).collect(),
            cached_tokens: (0..candidates.len()).map(cached).collect(),
            terms: policy.explain(&request, candidates, now),
        };
        self.guessed = guessed.unwrap_or_default();
        explanation
    }
}
