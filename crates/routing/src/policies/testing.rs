//! Fleets and prompts to decide on.

use crate::candidates::Candidates;
use crate::policy::{Choice, Policy};
use crate::request::Request;

/// So many idle workers, numbered from 0, of which nothing is known but that they have room.
pub(super) fn fleet(count: usize) -> Candidates {
    Candidates {
        worker: (0..count as u32).collect(),
        device_blocks: vec![0; count],
        host_blocks: vec![0; count],
        any_blocks: vec![0; count],
        predicted_blocks: vec![0; count],
        shared_blocks: vec![0; count],
        trusted: vec![true; count],
        requests: vec![0; count],
        waiting: vec![0; count],
        queued_tokens: vec![0.0; count],
        queued_prompt_tokens: vec![0.0; count],
        head_tokens: vec![0.0; count],
        head_elapsed: vec![0.0; count],
        held_tokens: vec![0.0; count],
        context_tokens: vec![0.0; count],
        used_blocks: vec![0.0; count],
        output_tokens_left: vec![0.0; count],
        reported_waiting: vec![f64::NAN; count],
        reported_running: vec![f64::NAN; count],
        reported_kv_usage: vec![f64::NAN; count],
        reported_age: vec![f64::NAN; count],
        prefill_rate: vec![f64::NAN; count],
        step_time: vec![f64::NAN; count],
        age: vec![1e6; count],
        sent: vec![0; count],
        last_cold: vec![f64::NEG_INFINITY; count],
        held_blocks: vec![0.0; count],
        capacity_blocks: vec![1e6; count],
        weight: vec![1.0; count],
    }
}

/// A prompt of full blocks of `size` tokens.
pub(super) fn blocks(size: u32, hashes: &[u64]) -> Request<'_> {
    Request { tokens: size * hashes.len() as u32, block_size: size, content_hashes: hashes, ..Request::default() }
}

/// The request with a number of its own.
pub(super) fn numbered(number: u64, request: Request<'_>) -> Request<'_> {
    Request { number, ..request }
}

/// Tells a policy that a prompt was sent to a row, whatever it would have chosen.
pub(super) fn sent_to(policy: &mut dyn Policy, request: &Request<'_>, candidates: &Candidates, row: usize) {
    policy.sent(request, candidates, row, 0.0);
}

/// Chooses a row for a request, and sends it there.
pub(super) fn send(policy: &mut dyn Policy, request: &Request<'_>, candidates: &Candidates, now: f64) -> usize {
    let Choice::Row(row) = policy.choose(request, candidates, now) else { panic!("it waits") };
    policy.sent(request, candidates, row, now);
    row
}
