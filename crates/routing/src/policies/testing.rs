//! Fleets and prompts to decide on.

use crate::candidates::Candidates;
use crate::policy::{Choice, Policy};
use crate::request::Request;

/// Returns a fleet of `count` idle workers, numbered from 0.
pub(super) fn fleet(count: usize) -> Candidates {
    Candidates::idle(count)
}

/// Chooses a row for a request, and sends it there.
pub(super) fn send(policy: &mut dyn Policy, request: &Request<'_>, candidates: &Candidates, now: f64) -> usize {
    let Choice::Row(row) = policy.choose(request, candidates, now) else { panic!("it waits") };
    policy.sent(request, candidates, row, now);
    row
}
