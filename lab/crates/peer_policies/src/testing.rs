//! Fleets and prompts to decide on.

use kvatlas_routing::{Candidates, Choice, Policy, Request};

/// Returns a fleet of `count` idle workers, numbered from 0.
pub(crate) fn fleet(count: usize) -> Candidates {
    Candidates::idle(count)
}

/// A prompt of full blocks of `size` tokens.
pub(crate) fn blocks(size: u32, hashes: &[u64]) -> Request<'_> {
    Request { tokens: size * hashes.len() as u32, block_size: size, content_hashes: hashes, ..Request::default() }
}

/// The request with a number of its own.
pub(crate) fn numbered(number: u64, request: Request<'_>) -> Request<'_> {
    Request { number, ..request }
}

/// Tells a policy that a prompt was sent to a row, whatever it would have chosen.
pub(crate) fn sent_to(policy: &mut dyn Policy, request: &Request<'_>, candidates: &Candidates, row: usize) {
    policy.sent(request, candidates, row, 0.0);
}

/// Chooses a row for a request, and sends it there.
pub(crate) fn send(policy: &mut dyn Policy, request: &Request<'_>, candidates: &Candidates, now: f64) -> usize {
    let Choice::Row(row) = policy.choose(request, candidates, now) else { panic!("it waits") };
    policy.sent(request, candidates, row, now);
    row
}
