//! Explanation of a decision that is not taken.

use crate::depths::Depths;
use crate::policy::Terms;
use crate::request::Request;
use crate::router::Router;
use crate::router::outcome::{Transfer, WorkerId};

/// An explanation of what a router would decide, and why: a row for each candidate.
#[derive(Debug, Clone, Default)]
pub struct Explanation {
    /// The candidates, by number.
    pub workers: Vec<WorkerId>,
    /// Prompt tokens that each is expected to have in its cache.
    pub cached_tokens: Vec<u32>,
    /// Parts that each would load or pull, as in [`Decision::transfer`](crate::Decision::transfer); empty if there is
    /// nothing to load or pull.
    pub transfers: Vec<Option<Transfer>>,
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
        let Self { fleet, who, expected, .. } = self;
        fleet.candidates(depths, Some(expected), (!who.is_empty()).then_some(who), now);
        self.note_ways(&request, depths, None, now);
        let (fleet, policy) = (&self.fleet, &self.policy);
        let candidates = fleet.same_candidates((!self.who.is_empty()).then_some(&self.who));
        let cached = |row: usize| -> u32 { request.tokens - request.uncached(candidates.reached(row)) };
        let transfers = candidates.ways.iter().enumerate();
        let transfers =
            transfers.map(|(row, way)| way.is_choice().then(|| fleet.transfer(way, &request, candidates, row)));
        let explanation = Explanation {
            workers: candidates.worker.iter().map(|&worker| WorkerId(worker)).collect(),
            cached_tokens: (0..candidates.len()).map(cached).collect(),
            terms: policy.explain(&request, candidates, now),
            transfers: transfers.collect(),
        };
        self.guessed = guessed.unwrap_or_default();
        explanation
    }
}
