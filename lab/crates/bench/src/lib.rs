//! An open-loop load test of any index: events and lookups at the times of a plan, and their measured results.
//!
//! A [`Plan`] has the stores and evictions of workers, and the lookups, each with its time. A run (one load test)
//! stretches or squeezes the plan into a window and issues every operation at its absolute deadline without waiting for
//! results: a slow answer does not delay the next query, so the recorded times are those that users would have waited.
//! An event counts when it has been applied, not when it was sent, and the clock stops when every queue is empty.
//!
//! A run judges its own validity. It is *valid* if the operations were issued on schedule, has *kept up* if at most a
//! twentieth was queued when the window closed and everything was done within 1.1 windows, and *agrees* if the index's
//! holdings and answers then equalled the plan's. Only a run that is all three is `ok`.
//!
//! | file | content |
//! |---|---|
//! | `plan/` | the plan, its checks and its file |
//! | `subject.rs`, `designs.rs` | an index under test; any design of `kvatlas-designs`, by its name |
//! | `driver/` | the generator, the query threads, and the end of a run |
//! | `truth.rs`, `compare.rs` | the plan's holdings, and the index's comparison with them |
//! | `probe.rs` | single lookups, timed without other load |
//! | `result.rs` | the result with all its fields |

mod compare;
mod designs;
mod driver;
mod error;
mod machine;
mod options;
mod plan;
mod probe;
pub mod result;
mod subject;
#[cfg(test)]
mod testing;
mod truth;

pub use designs::{FeedSubject, NULL, probe_rung, run_design, run_null};
pub use driver::{Label, run};
pub use error::Error;
pub use options::Options;
pub use plan::{Columns, Facts, Kind, Op, Plan};
pub use probe::{Probe, probe};
pub use result::RunResult;
pub use subject::{Counts, EventThread, Subject};
