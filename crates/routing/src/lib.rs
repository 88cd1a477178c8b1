//! Decisions: the choice of a worker for each request. No I/O, no threads, no clock of its own: callers pass the time.
//!
//! A [`Policy`] picks one row of [`Candidates`] for a [`Request`]. The router keeps the data behind each row: the
//! requests it has sent there, what came back, what the engine reports, how fast it has proved to be.
//!
//! | file | what |
//! |---|---|
//! | `options.rs` | refusals; a policy's settings, read and checked in one place |
//! | `time.rs`, `rng.rs` | seconds in order; chance with a seed |
//! | `request.rs`, `candidates.rs`, `depths.rs` | what a policy is shown: a request, the way in which a worker gets at it, a row for each worker and rank; what a lookup found |
//! | `policy.rs` | [`Policy`], and what it answers; a name for one |
//! | `parts/` | what policies are made of: chance, a ring of workers, tables of terms |
//! | `policies/` | the plain policies |
//! | `cost/` | our own policy, `kvatlas`: seconds of expected harm; all its weights |
//! | `policy_table.rs` | [`PolicyTable`]: policies by name |
//! | `predict/` | what nobody has announced: prompts on their way, and caches of engines that announce nothing |
//! | `speed.rs` | how fast a worker has proved to be |
//! | `transfers/` | the parts of prompts that workers load or pull instead of computing them, and what that costs |
//! | `router/` | [`Router`]: the fleet, reservations, sessions, late binding |
//!
//! Imports go up this table only.

#![forbid(unsafe_code)]

mod candidates;
mod cost;
mod depths;
mod options;
pub mod parts;
mod policies;
mod policy;
mod policy_table;
mod predict;
mod request;
mod rng;
mod router;
mod speed;
mod time;
mod transfers;

pub use candidates::{Candidates, PromptWay};
pub use cost::Weights;
pub use depths::{Depth, Depths};
pub use options::{Error, Options};
pub use policy::{BoxedPolicy, Choice, Placement, Policy, PolicyEntry, Terms, boxed};
pub use policy_table::{PolicyTable, by_name};
pub use predict::{PredictedIndex, Retention};
pub use request::{Kind, Request};
pub use router::{
    Belief, ChoiceReason, Config, Counts, Decision, Explanation, FinishedRequest, Load, Lookup, Order, Outcome,
    PullSource, Refusal, RequestChanges, RequestId, RequestReport, Router, SentRequest, Transfer, TransferAction,
    TransferCost, Usage, WorkerId,
};
pub use transfers::{Line, PullResult, Ways};
