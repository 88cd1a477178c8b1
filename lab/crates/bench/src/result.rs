//! The result of a run, as it is serialised. Times in ns unless their name says otherwise.

use serde::Serialize;

pub use crate::compare::{Comparison, Depths, Holdings};
pub use crate::machine::Clock;
pub use crate::plan::Facts;
pub use crate::subject::Counts;

use crate::options::Options;

/// The outcome of a run. Its figures count only if `ok`.
#[derive(Clone, Debug, Serialize)]
pub struct RunResult {
    /// Version of the format: 1.
    pub schema: u32,
    /// True if the figures count: `valid`, `kept_up`, `agrees` and free of errors.
    pub ok: bool,
    /// The reasons why the figures do not count; empty if `ok`.
    pub why: Vec<String>,
    /// True if the operations were issued on schedule: within 1.01 windows, and with a lag within its limit.
    pub valid: bool,
    /// True if at most a twentieth of the events and of the lookups was queued when the window closed, and all was done
    /// within 1.1 windows.
    pub kept_up: bool,
    /// True if every queue was empty in the end.
    pub drained: bool,
    /// True if everything compared was right; `None` if nothing was compared.
    pub agrees: Option<bool>,
    /// The index's name.
    pub index: String,
    /// A short description of the measured thing.
    pub about: String,
    /// The index's origin, with its version.
    pub version: String,
    /// The options, with defaults filled in.
    pub options: Options,
    /// The plan.
    pub plan: PlanFacts,
    /// Counts of the part after the warm-up.
    pub measured: Facts,
    /// Numbers of operations issued in all.
    pub issued: IssuedCounts,
    /// Number of events applied in all.
    pub applied: u64,
    /// Number of lookups answered in all.
    pub answered: u64,
    /// Length of the measured part, as planned.
    pub window_ns: u64,
    /// The rates of the plan in the window.
    pub offered: Rates,
    /// The rates achieved, over the time from the start of the measured part until all queues were empty; zeros if they
    /// never were.
    pub achieved: Rates,
    /// The time from the start of the measured part until its last operation was issued.
    pub issue_span_ns: u64,
    /// The lateness of the issued operations; `None` if none were measured.
    pub lag: Option<Times>,
    /// The limit on the p99 of the lag.
    pub lag_limit_ns: u64,
    /// The operations not completed when the window closed, whether issued late or not applied yet.
    pub queued_at_close: BacklogCounts,
    /// The largest number of sent and unapplied events, sampled about once a millisecond.
    pub max_queued_events: u64,
    /// The time from the window's close until all queues were empty; `None` if they never were.
    pub drain_ns: Option<u64>,
    /// The time from the start of the measured part until all queues were empty; `None` if they never were.
    pub total_ns: Option<u64>,
    /// The times of the lookup call alone, without the cost of the clock.
    pub service: Option<Times>,
    /// The times from a lookup's deadline until its answer.
    pub from_deadline: Option<Times>,
    /// The index's own counts; zeros if it never drained.
    pub counts: Counts,
    /// Memory of the process; `None` if the system does not report it.
    pub memory: Option<Memory>,
    /// The clock's properties.
    pub clock: Clock,
    /// The comparison of the index with the plan; `None` if it was not requested, or the queues never drained.
    pub comparison: Option<Comparison>,
}

/// The identity of the plan.
#[derive(Clone, Debug, Serialize)]
pub struct PlanFacts {
    /// The plan's digest, equal for equal plans.
    pub digest: String,
    /// Counts of the plan's contents.
    pub facts: Facts,
    /// The description of the plan's source.
    pub meta: serde_json::Value,
}

/// Numbers of issued operations, including the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IssuedCounts {
    /// Number of lookups handed to the query threads.
    pub lookups: u64,
    /// Number of events sent.
    pub events: u64,
}

/// Operations per second.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Rates {
    /// Blocks looked up, stored and removed per second.
    pub block_ops_per_s: f64,
    /// Lookups and events per second.
    pub ops_per_s: f64,
}

/// Numbers of uncompleted operations at some moment.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct BacklogCounts {
    /// Number of events due and not applied.
    pub events: u64,
    /// Number of lookups due and not answered.
    pub lookups: u64,
    /// The `events` as a share of the measured ones.
    pub events_share: f64,
    /// The `lookups` as a share of the measured ones.
    pub lookups_share: f64,
}

/// A distribution, from a histogram with three significant digits.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Times {
    /// Number of times measured.
    pub count: u64,
    /// The mean of the times.
    pub mean: f64,
    /// The time that half of them are at most.
    pub p50: u64,
    /// The time that 90 % of them are at most.
    pub p90: u64,
    /// The time that 99 % of them are at most.
    pub p99: u64,
    /// The time that 99.9 % of them are at most.
    pub p999: u64,
    /// The longest time.
    pub max: u64,
}

/// Resident memory of the process, in bytes. An index's memory is not the difference of two of these: messages are freed
/// while it grows, and it may reuse their memory.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memory {
    /// Memory with the plan loaded, before the index is made.
    pub rss_before: u64,
    /// Memory with the empty index, and all messages and queries prepared.
    pub rss_ready: u64,
    /// Memory after everything was applied.
    pub rss_end: u64,
}
