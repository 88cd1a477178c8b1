//! Counters of the router as a whole, and limits for repeated log lines.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hyper::StatusCode;
use parking_lot::Mutex;

use crate::histogram::{DECISION_SECONDS, Histogram, SECONDS};
use crate::model_counts::{GIVEN_UP, ModelCounts, ModelTable, STATUSES};
use crate::spans::RequestSpan;

/// Labels of a count of refused requests: class of the HTTP status, error code, and model.
type RefusalLabels = (&'static str, &'static str, Arc<str>);

/// Number of refused requests, by class of the HTTP status, error code and model.
#[derive(Debug)]
pub(crate) struct Refusals(Mutex<BTreeMap<RefusalLabels, u64>>);

impl Refusals {
    /// Makes the counters of refused requests. `none`: label for requests without a model.
    fn new(none: &Arc<str>) -> Self {
        // Each class is there from the beginning.
        let classes = [("4xx", "unknown_path"), ("5xx", "internal")];
        Self(Mutex::new(classes.into_iter().map(|(class, code)| ((class, code, none.clone()), 0)).collect()))
    }

    fn add(&self, status: StatusCode, code: &'static str, model: &Arc<str>) {
        let class = if status.is_server_error() { "5xx" } else { "4xx" };
        *self.0.lock().entry((class, code, model.clone())).or_default() += 1;
    }

    /// Number of requests refused with a status of 500 or above, whose cause is not the client.
    pub(crate) fn errors(&self) -> u64 {
        self.0.lock().iter().filter(|((class, ..), _)| *class == "5xx").map(|(_, count)| count).sum()
    }

    /// Number of refused requests by error code; codes without refused requests are left out.
    pub(crate) fn by_code(&self) -> BTreeMap<&'static str, u64> {
        let mut codes = BTreeMap::new();
        for ((_, code, _), count) in self.0.lock().iter().filter(|(_, count)| **count > 0) {
            *codes.entry(*code).or_default() += count;
        }
        codes
    }

    pub(crate) fn all(&self) -> BTreeMap<RefusalLabels, u64> {
        self.0.lock().clone()
    }
}

/// Time from the first refusal to the log line about it, so that refusals at about the same time share one line.
const GATHER: Duration = Duration::from_secs(2);

/// Log of refused requests, by error code: at most one line a minute.
#[derive(Debug, Default)]
pub(crate) struct RefusalLog {
    told: BTreeMap<&'static str, u64>,
    /// Time of the first refusal after the last log line; None if no request was refused since.
    since: Option<Instant>,
    last: Option<Instant>,
}

impl RefusalLog {
    /// Logs the requests refused since the last log line, if at least a minute has passed since that line.
    pub(crate) fn look(&mut self, refused: &Refusals, now: Instant) {
        if let Some((count, by_code)) = self.take(&refused.by_code(), now) {
            let requests = if count == 1 { "1 request was".to_owned() } else { format!("{count} requests were") };
            tracing::warn!(count, "{requests} refused since the last such line: {by_code}");
        }
    }

    /// Returns the number of refused requests for the next log line, and their reasons as text; None if too little time
    /// has passed for a new line.
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
    /// Counters of requests by model.
    pub(crate) models: ModelTable,
    /// Number of requests that the router itself refused, by status class, error code and model.
    pub(crate) refused: Refusals,
    /// Limits for log lines about requests that got no answer and were not retried, one limit for each reason in
    /// [`GIVEN_UP`].
    pub(crate) given_up_lines: [LogBudget; GIVEN_UP.len()],
    /// Limit for log lines about answers that broke off before their end.
    pub(crate) broken_lines: LogBudget,
    /// Number of requests split into prefill and decode on two engines, by the outcome of prefill.
    pub(crate) handovers: [AtomicU64; 4],
    /// Number of hedged requests, sent to a second engine while the first had not answered, by the outcome in
    /// [`HEDGES`].
    pub(crate) hedges: [AtomicU64; HEDGES.len()],
    /// Number of requests that two engines are processing now, because of a hedge (a second attempt while the first
    /// engine has not answered).
    pub(crate) open_hedges: AtomicUsize,
    /// Histogram of the times from a request's arrival to the first token of its streamed answer, in seconds, over all
    /// models and engines.
    pub(crate) first_token: Histogram<16>,
    /// Histogram of the durations of choices of an engine, in seconds.
    pub(crate) decision: Histogram<12>,
    /// Number of streams that the router began with a comment to the client, before the engine had sent anything.
    pub(crate) early_streams: AtomicU64,
    /// Number of panics in the router; each one is a bug.
    pub(crate) panics: AtomicU64,
}

/// Names of the outcomes of a hedge (a request sent to a second engine) in the metrics: the second engine answered
/// first, the first engine did, or the limit of open hedges was reached.
pub(crate) const HEDGES: [&str; 3] = ["won", "lost", "left_out"];

/// Pending count of one forwarded request. The request is counted on drop, by the HTTP status sent to the client, if
/// any.
pub(crate) struct Request<'a> {
    counts: &'a Counts,
    /// Counters of the request's model; unset until the request's body has been read.
    model: OnceLock<Arc<ModelCounts>>,
    status: Option<StatusCode>,
    /// Error code with which the router refused the request; None if not refused.
    refusal: Option<&'static str>,
    /// Time at which the request arrived.
    pub(crate) arrived: Instant,
    /// Trace span of the request; None if spans are not recorded.
    pub(crate) span: Option<Arc<RequestSpan>>,
}

impl<'a> Request<'a> {
    pub(crate) fn new(counts: &'a Counts, arrived: Instant, span: Option<Arc<RequestSpan>>) -> Self {
        Self { counts, model: OnceLock::new(), status: None, refusal: None, arrived, span }
    }

    /// Sets the model in whose counters the request is counted.
    pub(crate) fn is_for(&self, model: &Arc<ModelCounts>) {
        let _ = self.model.set(model.clone());
    }

    /// Returns the counters of the request's model; while the model is unknown, the counters of requests without a
    /// model.
    pub(crate) fn model(&self) -> &Arc<ModelCounts> {
        self.model.get().unwrap_or_else(|| self.counts.models.none())
    }

    /// Records the HTTP status of the answer to the client. `refusal`: the error code, if the router refused the
    /// request.
    pub(crate) fn answered(mut self, status: StatusCode, refusal: Option<&'static str>) {
        (self.status, self.refusal) = (Some(status), refusal);
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        let class = self.status.map_or(STATUSES.len(), |status| usize::from(status.as_u16() / 100).clamp(1, 5)) - 1;
        self.model().requests[class].fetch_add(1, Relaxed);
        if let Some(span) = &self.span {
            span.answered(self.status, self.refusal);
        }
    }
}

impl Counts {
    /// Number of forwarded requests that have ended: answered, or left by their clients.
    pub(crate) fn all_requests(&self) -> u64 {
        self.models.total(|model| &model.requests)
    }

    /// Number of retries over all models.
    pub(crate) fn all_retries(&self) -> u64 {
        self.models.total(|model| &model.retries)
    }

    /// Counts a request that the router itself refused. `model`: the request's model, if known.
    pub(crate) fn refuse(&self, status: StatusCode, code: &'static str, model: Option<&Arc<str>>) {
        self.refused.add(status, code, model.unwrap_or(&self.models.none().name));
    }

    pub(crate) fn new() -> Self {
        let models = ModelTable::default();
        Self {
            refused: Refusals::new(&models.none().name),
            models,
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

/// Maximum number of log lines of one kind in a minute.
const LINES: u32 = 32;
const MINUTE: Duration = Duration::from_secs(60);

/// Limit for log lines of one kind, which would otherwise be written for every request of an outage: a few lines are
/// written each minute, the others are counted.
#[derive(Debug, Default)]
pub(crate) struct LogBudget(Mutex<Lines>);

#[derive(Debug, Default)]
struct Lines {
    /// Beginning of the current minute; None before the first log line.
    since: Option<Instant>,
    written: u32,
    left_out: u64,
}

impl LogBudget {
    /// Requests permission to write a log line: returns the number of lines dropped since the last written line, or
    /// None if the line must be dropped too because the minute's limit is reached.
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
