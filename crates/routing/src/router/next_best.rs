//! Alternative workers for a request, to which gateways can send it if the chosen worker turns out to be gone.
//!
//! They are taken from the candidates of the decision, which include the cached blocks and the queue of each worker.
//! They are sorted by the time at which each would have computed the prompt. The policy has no influence on this order.

use std::sync::Arc;

use crate::candidates::Candidates;
use crate::request::Request;
use crate::router::fleet::Fleet;

/// Names of all candidates except the chosen worker, each once, sorted by the time at which they would have computed
/// the prompt; at most `most` names.
pub(super) fn next_best(
    fleet: &Fleet,
    candidates: &Candidates,
    request: &Request<'_>,
    chosen: u32,
    most: usize,
) -> Vec<Arc<str>> {
    if most == 0 {
        return Vec::new();
    }
    let seconds = |row: usize| {
        let depth = candidates.reached(row);
        let tokens = candidates.queued_tokens[row] + f64::from(request.uncached(depth));
        tokens / candidates.prefill_rate[row]
    };
    let name = |row: usize| &fleet.slots[candidates.worker[row] as usize].name;
    let own = &fleet.slots[chosen as usize].name;
    let mut rows: Vec<(f64, u32, usize)> = (0..candidates.len())
        .filter(|row| name(*row) != own)
        .map(|row| (seconds(row), candidates.requests[row], row))
        .collect();
    rows.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    let mut names: Vec<Arc<str>> = Vec::with_capacity(most.min(rows.len()));
    for (_, _, row) in rows {
        if names.len() == most {
            break;
        }
        if !names.contains(name(row)) {
            names.push(name(row).clone());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::depths::{Depth, Depths};
    use crate::{Config, Options, Outcome, Router, by_name};

    #[test]
    fn others_come_by_when_they_would_have_computed_the_prompt() {
        let mut router = Router::new(Config::default(), by_name("kvatlas", Options::default(), 1).unwrap());
        let ids: Vec<_> = ["a", "b", "c", "d"].iter().map(|name| router.add_worker(name, 0, 1.0, 0.0)).collect();
        let hashes: Vec<u64> = (1..=64).collect();
        let request = Request { tokens: 1024, block_size: 16, content_hashes: &hashes, ..Request::default() };
        let mut depths = Depths::unknown();
        depths.begin();
        for (id, blocks) in ids.iter().zip([60, 0, 40, 20]) {
            depths.set(id.0, Depth { device: blocks, host: blocks, any: blocks });
        }
        let decide = |router: &mut Router| {
            let Outcome::Placed(decision) = router.choose(&request, &depths, 1.0) else { unreachable!() };
            router.fail(decision.id, 1.0);
            (decision.name.to_string(), decision.others)
        };
        assert_eq!(decide(&mut router), ("a".to_owned(), Vec::new()), "none are asked for");
        router.name_others(2);
        let (name, others) = decide(&mut router);
        assert_eq!((name.as_str(), others), ("a", vec!["c".into(), "d".into()]));
        router.name_others(8);
        assert_eq!(decide(&mut router).1, ["c".into(), "d".into(), "b".into()]);
    }
}
