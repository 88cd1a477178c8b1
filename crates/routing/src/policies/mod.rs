//! Plain routing policies, each of which considers one criterion.
//!
//! The text of each file defines its policy, in words and symbols, and names routers with the same policy. Policies of
//! other projects are in a crate of their own. `docs/reference/policies.md` lists all policies with their options.

mod least_loaded;
mod power_of_two;
mod random;
mod round_robin;
mod session;
mod sticky_least_loaded;

use crate::policy::{PolicyEntry, boxed};

/// Name and constructor of each of the plain policies, those other than `kvatlas`.
pub(crate) const PLAIN: [PolicyEntry; 6] = [
    PolicyEntry { name: "random", make: |options, seed| boxed(random::Random::new(options, seed)) },
    PolicyEntry { name: "round-robin", make: |options, seed| boxed(round_robin::RoundRobin::new(options, seed)) },
    PolicyEntry { name: "power-of-two", make: |options, seed| boxed(power_of_two::PowerOfTwo::new(options, seed)) },
    PolicyEntry { name: "least-loaded", make: |options, seed| boxed(least_loaded::LeastLoaded::new(options, seed)) },
    PolicyEntry { name: "session", make: |options, seed| boxed(session::Session::new(options, seed)) },
    PolicyEntry {
        name: "sticky-least-loaded",
        make: |options, seed| boxed(sticky_least_loaded::StickyLeastLoaded::new(options, seed)),
    },
];

#[cfg(test)]
mod testing {
    use crate::candidates::Candidates;
    use crate::policy::{Choice, Policy};
    use crate::request::Request;

    /// Creates a fleet of `count` idle workers, numbered from 0, for tests.
    pub(super) fn fleet(count: usize) -> Candidates {
        Candidates::idle(count)
    }

    /// Chooses a candidate for a request by a policy and reports to the policy that the request was sent there; returns
    /// the candidate's row in the table.
    pub(super) fn send(policy: &mut dyn Policy, request: &Request<'_>, candidates: &Candidates, now: f64) -> usize {
        let Choice::Row(row) = policy.choose(request, candidates, now) else { panic!("it waits") };
        policy.sent(request, candidates, row, now);
        row
    }
}
