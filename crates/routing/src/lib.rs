//! Decisions: which worker takes a request. No I/O, no threads, no clock of its own: callers say what time it is.
//!
//! A [`Policy`] picks one row of [`Candidates`] for a [`Request`]. What is behind a row is kept by the router: what it has
//! sent there, what came back, what the engine reports, how fast it has proved to be.
//!
//! | file | what |
//! |---|---|
//! | `error.rs`, `options.rs` | refusals; a policy's settings, read and checked in one place |
//! | `time.rs`, `rng.rs` | seconds in order; chance with a seed |
//! | `request.rs`, `candidates.rs`, `depths.rs` | what a policy is shown: a request, a row for each worker and rank; what a lookup found |
//! | `policy.rs` | [`Policy`], and what it answers |
//! | `policies/` | the policies of other routers, by their published formulas, and the plain ones |
//! | `cost/` | our own policy, `kvatlas`: seconds of expected harm; all its weights |
//! | `names.rs` | [`by_name`] |
//! | `predict/` | what nobody has announced: prompts on their way, and caches of engines that announce nothing |
//! | `speed.rs` | how fast a worker has proved to be |
//! | `router/` | [`Router`]: the fleet, reservations, sessions, late binding |
//! | `split/` | [`PrefillDecode`]: prompts computed by one worker and decoded by another |
//!
//! Imports go up this table only.

#![forbid(unsafe_code)]

mod candidates;
mod cost;
mod depths;
mod error;
mod names;
mod options;
pub mod policies;
mod policy;
mod predict;
mod request;
mod rng;
mod router;
mod speed;
mod split;
mod time;

pub use candidates::Candidates;
pub use cost::Weights;
pub use depths::{Depth, Depths};
pub use error::Error;
pub use names::{by_name, names};
pub use options::Options;
pub use policy::{Choice, Placement, Policy, Terms};
pub use predict::{PredictedIndex, Retention};
pub use request::{Kind, Request};
pub use router::{
    ChoiceReason, Config, Counts, Decision, Explanation, FinishedRequest, Load, Lookup, Order, Outcome, Refusal,
    RequestId, Router, Usage, Work, WorkerId,
};
pub use split::{Legs, PrefillDecode, SplitCosts};
