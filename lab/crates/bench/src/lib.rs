//! An open-loop load test: events and lookups at the moments a plan gives them, against any index, and what came of it.
//!
//! A [`Plan`] says which worker stores and evicts what, and who asks what, at which moment. A run stretches or
//! squeezes it into a window and issues every operation at its absolute deadline on a thread that waits for nobody: no
//! answer that is slow delays the next question, so what a user would have waited is what is recorded. An event
//! counts when it has been applied, not when it was sent, and the clock stops when every queue is empty.
//!
//! A run says of itself whether it may be believed: *valid* if the operations were issued on schedule, *kept up* if
//! at most a twentieth was queued when the window closed and everything was done within 1.1 windows, *agrees* if the
//! index then held and answered what the plan says. Only a run that is all three is `ok`.
//!
//! | file | what |
//! |---|---|
//! | `plan/` | the plan, its checks and its file |
//! | `subject.rs`, `feed.rs`, `designs.rs` | an index under test; any rung of the ladder, by its name |
//! | `event_thread.rs` | a thread that applies events, for indexes without one |
//! | `driver/` | the generator, the query threads, and when to stop |
//! | `truth.rs`, `compare.rs` | what the plan says, and whether the index says the same |
//! | `probe.rs` | no load: single lookups, timed while nothing else happens |
//! | `result.rs` | the result, every field of it |

mod clock;
mod compare;
mod designs;
mod driver;
mod error;
mod event_thread;
mod feed;
mod machine;
mod options;
mod plan;
mod probe;
pub mod result;
mod rng;
mod subject;
#[cfg(test)]
mod testing;
mod truth;

pub use designs::{NULL, probe_rung, run_design, run_null};
pub use driver::{Label, run};
pub use error::Error;
pub use event_thread::EventThread;
pub use feed::FeedSubject;
pub use options::Options;
pub use plan::{Columns, Facts, Kind, Op, Plan};
pub use probe::{Probe, probe};
pub use result::RunResult;
pub use subject::{Counts, Subject};
