//! Routing decisions: the choice of a worker for each request. This crate has no I/O, no threads and no clock; callers
//! pass the time.
//!
//! A [`Policy`] picks one row of the table [`Candidates`] for a [`Request`]. The router keeps the data behind each row:
//! the requests sent to a worker, their results, the engine's reports, and the measured speed.
//!
//! | file | content |
//! |---|---|
//! | `options.rs` | errors; the settings of a policy, parsed and checked |
//! | `time.rs` | times that can be sorted |
//! | `request.rs`, `candidates.rs`, `depths.rs` | input of a policy: a request, a row for each worker and rank, the way in which a worker gets the prompt's blocks; results of lookups |
//! | `policy.rs` | [`Policy`], its choices, and its name |
//! | `parts/` | parts that policies share: random choice, a ring of workers, tables of terms |
//! | `policies/` | the plain policies |
//! | `cost/` | our own policy, `kvatlas`: seconds of expected harm, with all its weights |
//! | `policy_table.rs` | [`PolicyTable`]: policies by name |
//! | `predict/` | predictions of blocks not announced: prompts on their way, and caches of engines that announce nothing |
//! | `speed.rs` | measured speeds of workers |
//! | `transfers/` | the parts of prompts that workers load or pull instead of computing them, and the cost of that |
//! | `router/` | [`Router`]: the fleet, reservations, sessions, late binding |
//!
//! A file imports only from files above it in this table.

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
