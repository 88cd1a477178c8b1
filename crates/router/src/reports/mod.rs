//! Reports on the router, and its operators' changes.
//!
//! | file | what |
//! |---|---|
//! | `exposition.rs`, `model_metrics.rs` | `GET /metrics` |
//! | `state.rs` | engines, models and the router as JSON |
//! | `page` | the page at `GET /ui` |
//! | `admin.rs` | readiness, explanations, snapshots, changes of the fleet, reports of other routers |

pub(crate) mod admin;
pub(crate) mod exposition;
mod model_metrics;
pub(crate) mod page;
pub(crate) mod state;
