//! Plain policies, which belong to no project: each weighs one thing.
//!
//! Each file says in words and symbols what its policy computes, and which routers have the same. Policies of other
//! projects, by their formulas, are in a crate of their own. `docs/reference/policies.md` lists all with their options.

mod least_loaded;
mod power_of_two;
mod random;
mod round_robin;
mod session;
mod sticky_least_loaded;
#[cfg(test)]
mod testing;

use crate::policy_entry::{PolicyEntry, boxed};

/// The policies in here.
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
