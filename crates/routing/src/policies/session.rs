//! Routing policy `session`: sends all requests of a session to one worker.

use crate::candidates::Candidates;
use crate::options::{Error, Options};
use crate::parts::draw::{Draw, mix};
use crate::parts::ring::Ring;
use crate::parts::weight;
use crate::policy::{Choice, Policy};
use crate::request::Request;

/// Routing policy by consistent hashing of the session with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2018). It
/// picks the first worker on the hash ring, from the session's hash on, that has fewer requests than
///
/// ```text
/// bound = ceil(load_factor * (requests in flight + 1) * weight / sum of weights)
/// ```
/// Requests without a session go to the worker with the fewest requests relative to its weight.
///
/// Routers that have a session policy (vLLM production-stack's `session`, vllm-router's `consistent_hash` with 160
/// points a worker, Ray Serve's `ConsistentHashRouter`) have no bound, which equals a `load_factor` of 1e9. HAProxy
/// recommends 1.25 for its `hash-balance-factor` (125).
pub(super) struct Session {
    load_factor: f64,
    ring: Ring,
    draw: Draw,
}

impl Session {
    pub(super) fn new(options: &mut Options, seed: u64) -> Result<Self, Error> {
        Ok(Self {
            load_factor: options.number("load_factor", 1.25, 1.0, 1e9)?,
            ring: Ring::new(options.number("points", 160.0, 1.0, 10_000.0)? as u32),
            draw: Draw::new(seed),
        })
    }
}

impl Policy for Session {
    fn name(&self) -> &'static str {
        "session"
    }

    fn uses_index(&self) -> bool {
        false
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &Candidates, _now: f64) -> Choice {
        self.ring.put(&candidates.worker);
        let requests = |row: usize| f64::from(candidates.requests[row]);
        let share = |row: usize| weight(candidates.weight[row]);
        let sum: f64 = (0..candidates.len()).map(share).sum();
        let all: f64 = (0..candidates.len()).map(requests).sum();
        let bound = |row: usize| (self.load_factor * (all + 1.0) * share(row) / sum).ceil();
        let found = request
            .session
            .and_then(|session| self.ring.first(mix(session), &candidates.worker, |row| requests(row) < bound(row)));
        let row = found.or_else(|| self.draw.lowest(0..candidates.len(), |row| requests(row) / share(row)));
        Choice::Row(row.unwrap_or(0))
    }

    fn left(&mut self, worker: u32) {
        self.ring.remove(worker);
    }

    fn remembered(&self) -> (usize, usize) {
        (0, self.ring.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::testing::fleet;

    fn choose(policy: &mut Session, session: Option<u64>, candidates: &Candidates) -> usize {
        let request = Request { session, ..Request::default() };
        let Choice::Row(row) = policy.choose(&request, candidates, 0.0) else { panic!() };
        row
    }

    #[test]
    fn a_session_stays_until_its_worker_is_over_the_bound() {
        let mut policy = Session::new(&mut Options::default(), 0).unwrap();
        let mut candidates = fleet(4);
        let home = choose(&mut policy, Some(9), &candidates);
        assert!((0..20).all(|_| choose(&mut policy, Some(9), &candidates) == home));
        // 7 in flight: ceil(1.25 * 8 / 4) = 3. Two are below it, three are not.
        candidates.requests = vec![2; 4];
        candidates.requests[(home + 1) % 4] = 1;
        assert_eq!(choose(&mut policy, Some(9), &candidates), home);
        candidates.requests = vec![2, 2, 2, 2];
        candidates.requests[home] = 3;
        candidates.requests[(home + 1) % 4] = 0;
        assert_ne!(choose(&mut policy, Some(9), &candidates), home);
    }

    #[test]
    fn without_a_session_the_fewest_requests_count() {
        let mut policy = Session::new(&mut Options::default(), 0).unwrap();
        let mut candidates = fleet(3);
        candidates.requests = vec![2, 1, 2];
        assert_eq!(choose(&mut policy, None, &candidates), 1);
    }
}
