//! The result of a run. Serialised as it stands here; times in ns unless their name says otherwise.

use serde::Serialize;

pub use crate::clock::Clock;
pub use crate::compare::{Comparison, Depths, Holdings};
pub use crate::plan::Facts;
pub use crate::subject::Counts;

use crate::options::Options;

/// The outcome of a run. A figure in it counts only if `ok`.
#[derive(Clone, Debug, Serialize)]
pub struct RunResult {
    /// Version of this layout: 1.
    pub schema: u32,
    /// True if this is a result at all: `valid`, `kept_up`, `agrees` and free of errors.
    pub ok: bool,
    /// The reasons why this is no result, in words; empty if `ok`.
    pub why: Vec<String>,
    /// True if the operations were issued on schedule: within 1.01 windows, and with a lag within its limit.
    pub valid: bool,
    /// True if at most a twentieth of the events and of the lookups was queued when the window closed, and all was done
    /// within 1.1 windows.
    pub kept_up: bool,
    /// True if every queue was empty at last.
    pub drained: bool,
    /// True if everything compared was right; `None` if nothing was compared.
    pub agrees: Option<bool>,
    /// The index's name.
    pub index: String,
    /// A description of what was measured, in a few words.
    pub about: String,
    /// The index's origin, with its version.
    pub version: String,
    /// The options, with what was left to us filled in.
    pub options: Options,
    /// The plan.
    pub plan: PlanFacts,
    /// Numbers of everything in the part after the warm-up.
    pub measured: Facts,
    /// Numbers of operations issued in all.
    pub issued: IssuedCounts,
    /// Number of events applied in all.
    pub applied: u64,
    /// Number of lookups answered in all.
    pub answered: u64,
    /// Length of the measured part, as planned.
    pub window_ns: u64,
    /// The rates that the plan asks for in the window.
    pub offered: Rates,
    /// The rates that were reached, by the time from the start of the measured part until all queues were empty; zeros
    /// if that never came.
    pub achieved: Rates,
    /// The time from the start of the measured part until its last operation was issued.
    pub issue_span_ns: u64,
    /// The times by which operations were issued later than due; `None` if none were measured.
    pub lag: Option<Times>,
    /// The limit on the p99 of the lag.
    pub lag_limit_ns: u64,
    /// The operations still to do when the window closed, whether issued late or not applied yet.
    pub queued_at_close: BacklogCounts,
    /// The most events that were sent and not applied, of about one look a millisecond.
    pub max_queued_events: u64,
    /// The time from the window's close until all queues were empty; `None` if that never came.
    pub drain_ns: Option<u64>,
    /// The time from the start of the measured part until all queues were empty; `None` if that never came.
    pub total_ns: Option<u64>,
    /// The times of the lookup call alone, without the cost of the clock.
    pub service: Option<Times>,
    /// The times from when a lookup was due until it was answered.
    pub from_deadline: Option<Times>,
    /// The index's own counts; zeros if it never drained.
    pub counts: Counts,
    /// Memory of the process; `None` where the system does not tell.
    pub memory: Option<Memory>,
    /// The clock.
    pub clock: Clock,
    /// The comparison of the index with the plan; `None` if that was not asked, or it never drained.
    pub comparison: Option<Comparison>,
}

/// The identity of the plan.
#[derive(Clone, Debug, Serialize)]
pub struct PlanFacts {
    /// The plan's digest: equal digests are equal plans.
    pub digest: String,
    /// Numbers of everything in the plan.
    pub facts: Facts,
    /// The description of what the plan was made from.
    pub meta: serde_json::Value,
}

/// Numbers of operations issued, those of the warm-up included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IssuedCounts {
    /// Number of lookups handed to the query threads.
    pub lookups: u64,
    /// Number of events sent.
    pub events: u64,
}

/// Rates of operations a second.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Rates {
    /// Number of blocks asked for, stored and removed a second.
    pub block_ops_per_s: f64,
    /// Number of lookups and events a second.
    pub ops_per_s: f64,
}

/// Numbers of operations still to do at some moment.
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

/// A distribution, from a histogram of three significant digits.
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

/// Memory of the process in bytes (resident pages). The memory that an index takes is no simple difference of these:
/// messages are freed while it grows, and it may grow into their place.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memory {
    /// Memory with the plan loaded, before the index was made.
    pub rss_before: u64,
    /// Memory with the index made, empty, and all messages and queries waiting.
    pub rss_ready: u64,
    /// Memory with everything applied.
    pub rss_end: u64,
}
