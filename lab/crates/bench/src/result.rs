//! Result of a load test, in its serialised form. Times are in ns unless their name says otherwise.

use serde::Serialize;

pub use crate::compare::{Comparison, Depths, Holdings};
pub use crate::machine::Clock;
pub use crate::plan::Facts;
pub use crate::subject::Counts;

use crate::options::Options;

/// Result of a load test of an index. Its figures count only if `ok` is true.
#[derive(Clone, Debug, Serialize)]
pub struct RunResult {
    /// Version of the format of this result: 1.
    pub schema: u32,
    /// True if the figures count: the load test was `valid`, `kept_up`, `agrees`, and had no errors.
    pub ok: bool,
    /// Reasons why the figures do not count; empty if `ok`.
    pub why: Vec<String>,
    /// True if the operations were issued on schedule: within 1.01 windows, and with a lag within its limit.
    pub valid: bool,
    /// True if at most a twentieth of the events and of the lookups was queued when the measured window ended, and all
    /// operations were done within 1.1 windows.
    pub kept_up: bool,
    /// True if every queue of events and lookups was empty in the end.
    pub drained: bool,
    /// True if all answers of the index that were compared with the truth were right; `None` if none were compared.
    pub agrees: Option<bool>,
    /// Name of the tested index.
    pub index: String,
    /// Short description of the tested index's design.
    pub about: String,
    /// Origin of the tested index (such as its package), with its version.
    pub version: String,
    /// Options of the load test, with defaults filled in.
    pub options: Options,
    /// Identity and counts of the plan, the list of operations that was run.
    pub plan: PlanFacts,
    /// Counts of operations and blocks in the measured part of the plan, after the warm-up.
    pub measured: Facts,
    /// Numbers of operations issued, including the warm-up.
    pub issued: IssuedCounts,
    /// Number of events that the index applied, including the warm-up.
    pub applied: u64,
    /// Number of lookups that the index answered, including the warm-up.
    pub answered: u64,
    /// Planned length of the measured window, in ns.
    pub window_ns: u64,
    /// Rates at which the plan issues operations in the measured window.
    pub offered: Rates,
    /// Achieved rates, over the time from the start of the measured window until all queues were empty; zeros if they
    /// never were.
    pub achieved: Rates,
    /// Time from the start of the measured window until its last operation was issued, in ns.
    pub issue_span_ns: u64,
    /// Distribution of the lateness with which operations were issued (time of issue minus deadline), in ns; `None` if
    /// none were measured.
    pub lag: Option<Times>,
    /// Maximum 99th percentile of the lateness with which operations are issued for a valid load test, in ns.
    pub lag_limit_ns: u64,
    /// Operations not completed at the end of the measured window, issued late or not applied yet.
    pub queued_at_close: BacklogCounts,
    /// Largest number of events that were sent and not applied, sampled about once a millisecond.
    pub max_queued_events: u64,
    /// Time from the end of the measured window until all queues were empty, in ns; `None` if they never were.
    pub drain_ns: Option<u64>,
    /// Time from the start of the measured window until all queues were empty, in ns; `None` if they never were.
    pub total_ns: Option<u64>,
    /// Distribution of the duration of a lookup call, in ns, without the cost of reading the clock; `None` if no lookup
    /// was measured.
    pub service: Option<Times>,
    /// Distribution of the time from a lookup's deadline until its answer, in ns.
    pub from_deadline: Option<Times>,
    /// Counts reported by the index; zeros if its queues never became empty.
    pub counts: Counts,
    /// Resident memory of the process at three moments; `None` if the system does not report it.
    pub memory: Option<Memory>,
    /// Properties of the machine's clock, measured just before the load test.
    pub clock: Clock,
    /// Comparison of the index with the plan; `None` if not requested, or if the queues never became empty.
    pub comparison: Option<Comparison>,
}

/// Identity and counts of a plan, for the result.
#[derive(Clone, Debug, Serialize)]
pub struct PlanFacts {
    /// Digest (hash of the contents) of the plan, equal for equal plans.
    pub digest: String,
    /// Counts of the plan's operations and blocks.
    pub facts: Facts,
    /// JSON object that describes the plan's source.
    pub meta: serde_json::Value,
}

/// Numbers of issued operations, including the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IssuedCounts {
    /// Number of lookups passed to the query threads.
    pub lookups: u64,
    /// Number of events sent to the index.
    pub events: u64,
}

/// Rates of operations per second.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Rates {
    /// Blocks looked up, stored and removed per second.
    pub block_ops_per_s: f64,
    /// Lookups and events per second.
    pub ops_per_s: f64,
}

/// Operations that were due (their deadlines had passed) and not completed at some moment.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct BacklogCounts {
    /// Number of events whose deadlines had passed and that were not applied.
    pub events: u64,
    /// Number of lookups whose deadlines had passed and that were not answered.
    pub lookups: u64,
    /// Share of the measured events whose deadlines had passed and that were not applied, 0 to 1.
    pub events_share: f64,
    /// Share of the measured lookups whose deadlines had passed and that were not answered, 0 to 1.
    pub lookups_share: f64,
}

/// Distribution of measured times, in ns, from a histogram with three significant digits.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Times {
    /// Number of measured times in the distribution.
    pub count: u64,
    /// Mean of the times, in ns.
    pub mean: f64,
    /// Median of the times, in ns.
    pub p50: u64,
    /// 90th percentile of the times, in ns.
    pub p90: u64,
    /// 99th percentile of the times, in ns.
    pub p99: u64,
    /// 99.9th percentile of the times, in ns.
    pub p999: u64,
    /// Longest time, in ns.
    pub max: u64,
}

/// Resident memory of the process, in bytes, at three moments. An index's memory is not the difference of two of these
/// values: messages are freed while the index grows, and it may reuse their memory.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memory {
    /// Resident memory in bytes with the plan loaded, before the index is created.
    pub rss_before: u64,
    /// Resident memory in bytes with the empty index, and all messages and queries prepared.
    pub rss_ready: u64,
    /// Resident memory in bytes after all operations of the load test were completed.
    pub rss_end: u64,
}
