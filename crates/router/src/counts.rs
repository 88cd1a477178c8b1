//! Counters of the router as a whole, histograms of durations, and budgets of repeated lines of the log.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

use hyper::StatusCode;
use parking_lot::Mutex;

/// Upper bounds of the buckets for times, in seconds.
pub(crate) const SECONDS: [f64; 16] =
    [0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.0, 4.0, 16.0, 64.0];

/// Upper bounds of the buckets for decisions, in seconds.
pub(crate) const DECISION_SECONDS: [f64; 12] = [1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3, 5e-2];

/// A histogram of durations.
#[derive(Debug)]
pub(crate) struct Histogram<const N: usize> {
    bounds: &'static [f64; N],
    buckets: [AtomicU64; N],
    beyond: AtomicU64,
    micros: AtomicU64,
}

impl<const N: usize> Histogram<N> {
    pub(crate) fn new(bounds: &'static [f64; N]) -> Self {
        Self { bounds, buckets: [const { AtomicU64::new(0) }; N], beyond: AtomicU64::new(0), micros: AtomicU64::new(0) }
    }

    pub(crate) fn add(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let at = self.bounds.partition_point(|bound| *bound < seconds);
        self.buckets.get(at).unwrap_or(&self.beyond).fetch_add(1, Relaxed);
        self.micros.fetch_add(took.as_micros() as u64, Relaxed);
    }

    /// Quantile of the durations, interpolated linearly within its bucket; none if there are fewer than `least`
    /// samples.
    pub(crate) fn quantile(&self, quantile: f64, least: u64) -> Option<Duration> {
        let counts = self.buckets.each_ref().map(|count| count.load(Relaxed));
        let all = counts.iter().sum::<u64>() + self.beyond.load(Relaxed);
        if all < least.max(1) {
            return None;
        }
        let (mut left, mut low) = (quantile * all as f64, 0.0);
        for (count, high) in counts.into_iter().zip(self.bounds) {
            if count > 0 && left <= count as f64 {
                return Some(Duration::from_secs_f64(low + (high - low) * left.max(0.0) / count as f64));
            }
            left -= count as f64;
            low = *high;
        }
        Some(Duration::from_secs_f64(low))
    }

    /// Counts by upper bound of the bucket, and the sum of the durations in seconds.
    pub(crate) fn read(&self) -> (Vec<(f64, u64)>, f64) {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let counts = self.buckets.iter().chain([&self.beyond]).map(|count| count.load(Relaxed));
        (bounds.zip(counts).collect(), self.micros.load(Relaxed) as f64 / 1e6)
    }
}

/// Numbers of refused requests, by the class of the status, and the code.
#[derive(Debug)]
pub(crate) struct Refusals(Mutex<BTreeMap<(&'static str, &'static str), u64>>);

impl Default for Refusals {
    fn default() -> Self {
        // Each class is there from the beginning.
        Self(Mutex::new(BTreeMap::from([(("4xx", "unknown_path"), 0), (("5xx", "internal"), 0)])))
    }
}

impl Refusals {
    pub(crate) fn add(&self, status: StatusCode, code: &'static str) {
        let class = if status.is_server_error() { "5xx" } else { "4xx" };
        *self.0.lock().entry((class, code)).or_default() += 1;
    }

    /// Number of refused requests that were no fault of the client's.
    pub(crate) fn errors(&self) -> u64 {
        self.0.lock().iter().filter(|((class, _), _)| *class == "5xx").map(|(_, count)| count).sum()
    }

    /// Numbers of refused requests by code, of those that were refused at all.
    pub(crate) fn by_code(&self) -> BTreeMap<&'static str, u64> {
        let mut codes = BTreeMap::new();
        for ((_, code), count) in self.0.lock().iter().filter(|(_, count)| **count > 0) {
            *codes.entry(*code).or_default() += count;
        }
        codes
    }

    pub(crate) fn all(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        self.0.lock().clone()
    }
}

/// Time after the first refusal until the log says it: what belongs together is said together.
const GATHER: Duration = Duration::from_secs(2);

/// The log's account of refused requests, by reason: one line a minute at most.
#[derive(Debug, Default)]
pub(crate) struct RefusalLog {
    told: BTreeMap<&'static str, u64>,
    /// Time at which refusals were first seen that no line says yet.
    since: Option<Instant>,
    last: Option<Instant>,
}

impl RefusalLog {
    /// Looks at the counts, and logs what was refused since the last line.
    pub(crate) fn look(&mut self, refused: &Refusals, now: Instant) {
        if let Some((count, by_code)) = self.take(&refused.by_code(), now) {
            let requests = if count == 1 { "1 request was".to_owned() } else { format!("{count} requests were") };
            tracing::warn!(count, "{requests} refused since the last such line: {by_code}");
        }
    }

    /// Returns the number of requests that the next line is about, and their reasons, when it is due.
    fn take(&mut self, by_code: &BTreeMap<&'static str, u64>, now: Instant) -> Option<(u64, String)> {
        if *by_code == self.told {
            return None;
        }
        let since = *self.since.get_or_insert(now);
        if now - since < GATHER || self.last.is_some_and(|last| now - last < MINUTE) {
            return None;
        }
        let more = |(code, count): (&&'static str, &u64)| (*count - self.told.get(code).unwrap_or(&0), *code);
        let mut more: Vec<_> = by_code.iter().map(more).filter(|(count, _)| *count > 0).collect();
        more.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
        let words: Vec<_> = more.iter().map(|(count, code)| format!("{count} {code}")).collect();
        (self.told, self.since, self.last) = (by_code.clone(), None, Some(now));
        Some((more.iter().map(|(count, _)| count).sum(), words.join(", ")))
    }
}

/// Counters of the router as a whole.
#[derive(Debug)]
pub(crate) struct Counts {
    /// Requests for engines, by [`STATUSES`].
    pub(crate) requests: [AtomicU64; STATUSES.len()],
    /// Requests that the router refused itself.
    pub(crate) refused: Refusals,
    /// Requests sent again, by why the one before failed.
    pub(crate) retries: [AtomicU64; crate::engines::FAULTS.len()],
    /// Requests that got no answer and were not sent again, by [`GIVEN_UP`].
    pub(crate) given_up: [AtomicU64; GIVEN_UP.len()],
    /// Lines of the log on these, and on answers that broke off.
    pub(crate) given_up_lines: [LogBudget; GIVEN_UP.len()],
    pub(crate) broken_lines: LogBudget,
    /// Requests divided into prefill and decode, by the outcome of prefill.
    pub(crate) handovers: [AtomicU64; 4],
    /// Requests that were sent to a second engine, by [`HEDGES`].
    pub(crate) hedges: [AtomicU64; HEDGES.len()],
    /// Number of requests that are at two engines at present.
    pub(crate) open_hedges: AtomicUsize,
    /// Times from a request's arrival to the first token of its streamed answer.
    pub(crate) first_token: Histogram<16>,
    /// Durations of decisions.
    pub(crate) decision: Histogram<12>,
    /// Streams that began with a comment, before anything had come from an engine.
    pub(crate) early_streams: AtomicU64,
    /// Panics, which are bugs.
    pub(crate) panics: AtomicU64,
}

/// Classes of the statuses that clients got; `none` if the client left before there was a status.
pub(crate) const STATUSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "none"];

/// Reasons why a request is not sent again, in the order of `LastAttempt`.
pub(crate) const GIVEN_UP: [&str; 4] = ["not_repeatable", "sent_twice", "no_retries_left", "no_other_engine"];

/// Outcomes of hedges by their names in the metrics: the second engine answered first, the first engine did, or the
/// limit of open hedges was reached.
pub(crate) const HEDGES: [&str; 3] = ["won", "lost", "left_out"];

/// Counts a forwarded request when its client has a status or has left.
pub(crate) struct Request<'a> {
    counts: &'a Counts,
    status: Option<StatusCode>,
}

impl<'a> Request<'a> {
    pub(crate) fn new(counts: &'a Counts) -> Self {
        Self { counts, status: None }
    }

    /// Notes that the request's client gets this status.
    pub(crate) fn answered(mut self, status: StatusCode) {
        self.status = Some(status);
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        let class = self.status.map_or(STATUSES.len(), |status| usize::from(status.as_u16() / 100).clamp(1, 5)) - 1;
        self.counts.requests[class].fetch_add(1, Relaxed);
    }
}

impl Counts {
    /// Requests for engines that have an answer, or whose clients have left.
    pub(crate) fn all_requests(&self) -> u64 {
        self.requests.iter().map(|count| count.load(Relaxed)).sum()
    }

    pub(crate) fn new() -> Self {
        Self {
            requests: Default::default(),
            refused: Refusals::default(),
            retries: Default::default(),
            given_up: Default::default(),
            given_up_lines: Default::default(),
            broken_lines: LogBudget::default(),
            handovers: Default::default(),
            hedges: Default::default(),
            open_hedges: AtomicUsize::new(0),
            first_token: Histogram::new(&SECONDS),
            decision: Histogram::new(&DECISION_SECONDS),
            early_streams: AtomicU64::new(0),
            panics: AtomicU64::new(0),
        }
    }
}

/// Lines of a kind that are written a minute.
const LINES: u32 = 32;
const MINUTE: Duration = Duration::from_secs(60);

/// Budget of the lines of one kind, which an outage would repeat for every request: some are written each minute, the
/// others are counted.
#[derive(Debug, Default)]
pub(crate) struct LogBudget(Mutex<Lines>);

#[derive(Debug, Default)]
struct Lines {
    /// The beginning of the minute that counts.
    since: Option<Instant>,
    written: u32,
    left_out: u64,
}

impl LogBudget {
    /// Takes a line of the budget: returns the number of lines dropped before it; none if this line is dropped too.
    pub(crate) fn take(&self) -> Option<u64> {
        self.take_at(Instant::now())
    }

    fn take_at(&self, now: Instant) -> Option<u64> {
        let mut lines = self.0.lock();
        if lines.since.is_none_or(|since| now - since >= MINUTE) {
            (lines.since, lines.written) = (Some(now), 0);
        }
        if lines.written >= LINES {
            lines.left_out += 1;
            return None;
        }
        lines.written += 1;
        Some(std::mem::take(&mut lines.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_said_once_a_minute_by_reason() {
        let (mut log, start) = (RefusalLog::default(), Instant::now());
        let codes = |full, unknown| BTreeMap::from([("queue_full", full), ("unknown_model", unknown)]);
        assert_eq!(log.take(&BTreeMap::new(), start), None);
        assert_eq!(log.take(&codes(3, 1), start), None, "more may come");
        let said = log.take(&codes(200, 1), start + GATHER);
        assert_eq!(said, Some((201, "200 queue_full, 1 unknown_model".to_owned())));
        assert_eq!(log.take(&codes(200, 1), start + MINUTE + GATHER), None);
        assert_eq!(log.take(&codes(205, 1), start + MINUTE), None);
        assert_eq!(log.take(&codes(205, 1), start + MINUTE + GATHER), Some((5, "5 queue_full".to_owned())));
    }

    #[test]
    fn some_lines_a_minute() {
        let (budget, start) = (LogBudget::default(), Instant::now());
        let written = (0..1_000).filter(|_| budget.take_at(start).is_some()).count();
        assert_eq!(written, LINES as usize);
        assert_eq!(budget.take_at(start + MINUTE), Some(1_000 - u64::from(LINES)));
        assert_eq!(budget.take_at(start + MINUTE), Some(0));
    }
}
