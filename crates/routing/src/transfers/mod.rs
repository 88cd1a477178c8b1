//! Transfers of blocks to a worker: a part of a prompt that the worker does not hold on its device may be loaded from
//! tiers of its own, or pulled from the host memory of another worker, instead of computed. The costs of both are
//! measured.
//!
//! After the blocks on its device, a worker looks up the next blocks in a fixed order: its host memory, then its disks
//! and pools, then the one other worker from which it was instructed to pull. So two things are chosen for each
//! candidate: how far to follow this order, and the source to pull from; the rest of the prompt is computed. An engine
//! computes other prompts during a transfer, so only the seconds by which a transfer outlasts the queue count as a
//! cost.
//!
//! | file | content |
//! |---|---|
//! | `costs.rs` | the cost of one kind of transfer, a fixed part and seconds per token, learnt from samples; these costs for each worker and tier, and each pair of workers |
//! | `pairs.rs` | the pairs of workers that may pull from each other: groups, signs of life, failures |
//! | `plan.rs` | the best way for a candidate, and a bound on it that is found quickly |
//! | `moved.rs` | one request's transfer: the expected times, and the result |

mod costs;
mod moved;
mod pairs;
mod plan;

pub use costs::Line;
pub(crate) use costs::{Kind, Priors};
pub(crate) use moved::MovedTokens;
pub use moved::PullResult;
pub(crate) use pairs::{Guards, Transfers};
pub(crate) use plan::LeastTransfer;
pub use plan::Ways;
