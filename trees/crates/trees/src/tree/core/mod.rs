//! The tree itself, for one writer: nodes, and the few ways to change them. Who may call when is the matter of `shared/`.
//!
//! | file | what |
//! |---|---|
//! | `nodes.rs` | nodes and the runs that their edges are in |
//! | `order.rs` | the order of eviction: for each tenant a heap of its leaves |
//! | `holding.rs` | tenants come to nodes and leave them |
//! | `evict.rs` | leaves go in that order |
//! | `descend.rs` | following an input down |

mod descend;
mod evict;
mod holding;
mod nodes;
mod order;

pub(crate) use descend::START;
#[cfg(test)]
pub(crate) use nodes::Node;
pub(crate) use nodes::{Core, Descent, Piece, ROOT, Run};
