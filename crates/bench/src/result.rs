//! The result of a run. Serialised as it stands here; times in ns unless their name says otherwise.

use serde::Serialize;

pub use crate::clock::Clock;
pub use crate::compare::{Comparison, Depths, Holdings};
pub use crate::plan::Facts;
pub use crate::subject::Counts;

use crate::options::Options;

/// What came of a run. A figure in it counts only if `ok`.
#[derive(Clone, Debug, Serialize)]
pub struct RunResult {
    /// Version of this layout: 1.
    pub schema: u32,
    /// Whether this is a result at all: `valid`, `kept_up`, `agrees` and free of errors.
    pub ok: bool,
    /// Why it is not, in words; empty if `ok`.
    pub why: Vec<String>,
    /// Whether the operations were issued on schedule: within 1.01 windows, and with a lag within its limit.
    pub valid: bool,
    /// Whether at most a twentieth of the events and of the lookups was queued when the window closed, and all was
    /// done within 1.1 windows.
    pub kept_up: bool,
    /// Whether every queue was empty at last.
    pub drained: bool,
    /// Whether everything compared was right; `None` if nothing was compared.
    pub agrees: Option<bool>,
    /// The index's name.
    pub index: String,
    /// What was measured of it, in a few words.
    pub about: String,
    /// What it comes from, with its version.
    pub version: String,
    /// The options, with what was left to us filled in.
    pub options: Options,
    /// The plan.
    pub plan: PlanFacts,
    /// The part after the warm-up.
    pub measured: Facts,
    /// Operations issued in all.
    pub issued: Issued,
    /// Events applied in all.
    pub applied: u64,
    /// Lookups answered in all.
    pub answered: u64,
    /// Length of the measured part, as planned.
    pub window_ns: u64,
    /// What the plan asks for in the window.
    pub offered: Rates,
    /// What was done, by the time from the start of the measured part until all queues were empty; zeros if that
    /// never came.
    pub achieved: Rates,
    /// From the start of the measured part until its last operation was issued.
    pub issue_span_ns: u64,
    /// How much later than due operations were issued; `None` if none were measured.
    pub lag: Option<Times>,
    /// What the p99 of the lag must be within.
    pub lag_limit_ns: u64,
    /// What was still to do when the window closed, whether issued late or not applied yet.
    pub queued_at_close: Queued,
    /// The most events that were sent and not applied, of about one look a millisecond.
    pub max_queued_events: u64,
    /// From the window's close until all queues were empty; `None` if that never came.
    pub drain_ns: Option<u64>,
    /// From the start of the measured part until all queues were empty; `None` if that never came.
    pub total_ns: Option<u64>,
    /// The lookup call alone, without the cost of the clock.
    pub service: Option<Times>,
    /// From when a lookup was due until it was answered.
    pub from_deadline: Option<Times>,
    /// What the index says of itself; zeros if it never drained.
    pub counts: Counts,
    /// Memory of the process; `None` where the system does not tell.
    pub memory: Option<Memory>,
    /// The clock.
    pub clock: Clock,
    /// Whether the index held and answered what the plan says; `None` if that was not asked, or it never drained.
    pub comparison: Option<Comparison>,
}

/// Which plan it was.
#[derive(Clone, Debug, Serialize)]
pub struct PlanFacts {
    /// Equal digests are equal plans.
    pub digest: String,
    /// How much there is of everything.
    pub facts: Facts,
    /// What it was made from.
    pub meta: serde_json::Value,
}

/// Operations issued, those of the warm-up included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Issued {
    /// Lookups handed to the query threads.
    pub lookups: u64,
    /// Events sent.
    pub events: u64,
}

/// Operations a second.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Rates {
    /// Blocks asked for, stored and removed.
    pub block_ops_per_s: f64,
    /// Lookups and events.
    pub ops_per_s: f64,
}

/// What was still to do at some moment.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Queued {
    /// Events due and not applied.
    pub events: u64,
    /// Lookups due and not answered.
    pub lookups: u64,
    /// `events` as a share of the measured ones.
    pub events_share: f64,
    /// `lookups` as a share of the measured ones.
    pub lookups_share: f64,
}

/// A distribution, from a histogram of three significant digits.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Times {
    /// How many were measured.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// Half of them are at most this.
    pub p50: u64,
    /// 90 % of them.
    pub p90: u64,
    /// 99 %.
    pub p99: u64,
    /// 99.9 %.
    pub p999: u64,
    /// All of them.
    pub max: u64,
}

/// Memory of the process in bytes (resident pages). What an index takes is no simple difference of these: messages
/// are freed while it grows, and it may grow into their place.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memory {
    /// With the plan loaded, before the index was made.
    pub rss_before: u64,
    /// With the index made, empty, and all messages and queries waiting.
    pub rss_ready: u64,
    /// With everything applied.
    pub rss_end: u64,
}
