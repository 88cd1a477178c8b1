//! Counts of an engine's requests: all of them, and how the last ones ended. The latter are made of the former now and then, so
//! that requests write nothing for them.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::fault::NAMES as FAULTS;
use super::model_counts::EngineModels;

/// Counts of an engine's requests, answers and failures.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Counts by model.
    pub(crate) models: EngineModels,
    /// Answers that take no request at present: with status 429, with status 503.
    pub(crate) not_taken: [AtomicU64; 2],
    /// Answers that broke off in the middle, or ended with an error.
    pub(crate) broken: AtomicU64,
    /// Requests that the client gave up.
    pub(crate) cancelled: AtomicU64,
    /// Requests in flight.
    pub(crate) in_flight: AtomicUsize,
    /// Requests in flight without a byte of an answer's body.
    pub(crate) waiting: AtomicUsize,
    /// Time of the last byte, or of the first request after the engine was idle.
    pub(crate) last_byte: AtomicU64,
    /// Connections made.
    pub(crate) connections: AtomicU64,
    /// Oversized answers, lines and entries in the engine's statements about itself.
    pub(crate) oversized: AtomicU64,
    /// Number of times that the engine was left alone because of failures.
    pub(crate) opened: AtomicU64,
}

impl Counts {
    /// Answers of all models, by the first digit of their status, from 1 on.
    pub(crate) fn answers(&self) -> [u64; 5] {
        self.models.sum(|model| &model.answers)
    }

    /// Faults of all models, by [`FAULTS`](super::FAULTS).
    pub(crate) fn faults(&self) -> [u64; FAULTS.len()] {
        self.models.sum(|model| &model.faults)
    }

    /// Prompt tokens of all models that the engine says it had cached.
    pub(crate) fn cached_tokens(&self) -> u64 {
        self.models.total(|model| &model.cached_tokens)
    }
}

/// Requests beyond which the older half is forgotten.
const MOST: u64 = 40;

/// Failures below which nothing is said.
const LEAST: u64 = 3;

/// Time without a request after which half of the counts is dropped, so that an engine that gets no requests because of
/// failures is tried again.
const FORGETS_AFTER: Duration = Duration::from_secs(5);

/// Counts of how the last requests of an engine ended.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    seen: Mutex<RecentCounts>,
    /// True if half of the last requests or more had failed at the last look.
    is_failing: AtomicBool,
}

#[derive(Debug, Default)]
struct RecentCounts {
    /// Requests that failed or were answered, as counted at the last look.
    failures: u64,
    answers: u64,
    /// Requests that failed or were answered, among the last ones.
    failed: u64,
    worked: u64,
    /// Time of the last look that found new requests, or dropped half of the counts.
    last: Option<Instant>,
}

impl Recent {
    /// Takes in what has happened since the last look.
    pub(crate) fn look(&self, counts: &Counts, now: Instant) {
        let answers = counts.answers();
        let (others, errors) = answers.split_at(answers.len() - 1);
        // An answer that breaks off or ends with an error is a fault too, and so is one that says that the engine is busy.
        let failures = counts.faults().iter().sum::<u64>().max(errors.iter().sum());
        let answers = others.iter().sum::<u64>().saturating_sub(counts.broken.load(Relaxed));
        let mut seen = self.seen.lock();
        let is_new = (failures, answers) != (seen.failures, seen.answers);
        seen.failed += failures.saturating_sub(seen.failures);
        // One that was taken for an answer at its beginning may have broken off since.
        seen.worked = (seen.worked + answers).saturating_sub(seen.answers);
        (seen.failures, seen.answers) = (failures, answers);
        let is_old = !is_new && seen.last.is_some_and(|last| now.duration_since(last) >= FORGETS_AFTER);
        if is_new || is_old {
            seen.last = Some(now);
        }
        if is_old {
            seen.failed /= 2;
            seen.worked /= 2;
        }
        while seen.failed + seen.worked > MOST {
            seen.failed /= 2;
            seen.worked /= 2;
        }
        self.is_failing.store(seen.failing().is_some(), Relaxed);
    }

    /// True if half of the last requests or more failed, as of the last look.
    pub(crate) fn is_failing(&self) -> bool {
        self.is_failing.load(Relaxed)
    }

    /// Returns how many of the last requests failed, and of how many, if that is half of them or more, and [`LEAST`] or
    /// more.
    pub(crate) fn failing(&self) -> Option<(u64, u64)> {
        self.seen.lock().failing()
    }
}

impl RecentCounts {
    fn failing(&self) -> Option<(u64, u64)> {
        (self.failed >= LEAST && self.failed >= self.worked).then_some((self.failed, self.failed + self.worked))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engines::model_counts::EngineModelCounts;

    fn of(counts: &Counts) -> Arc<EngineModelCounts> {
        counts.models.of(&Arc::from("m"))
    }

    #[test]
    fn the_last_requests_decide() {
        let (recent, counts, now) = (Recent::default(), Counts::default(), Instant::now());
        of(&counts).answers[4].fetch_add(2, Relaxed);
        recent.look(&counts, now);
        assert_eq!(recent.failing(), None, "two may be chance");
        of(&counts).answers[4].fetch_add(2, Relaxed);
        of(&counts).faults[1].fetch_add(5, Relaxed);
        recent.look(&counts, now);
        recent.look(&counts, now);
        assert_eq!(recent.failing(), Some((5, 5)));
        of(&counts).answers[1].fetch_add(1_000_000, Relaxed);
        recent.look(&counts, now);
        assert_eq!(recent.failing(), None);
        of(&counts).answers[4].fetch_add(1_000_000, Relaxed);
        recent.look(&counts, now);
        assert!(recent.failing().is_some());
    }

    #[test]
    fn answers_that_end_badly_did_not_work() {
        let (recent, counts, now) = (Recent::default(), Counts::default(), Instant::now());
        for _ in 0..4 {
            of(&counts).answers[1].fetch_add(1, Relaxed);
            recent.look(&counts, now);
            counts.broken.fetch_add(1, Relaxed);
            of(&counts).faults[10].fetch_add(1, Relaxed);
            recent.look(&counts, now);
        }
        assert_eq!(recent.failing(), Some((4, 4)));
    }

    #[test]
    fn an_engine_without_requests_is_tried_again() {
        let (recent, counts, start) = (Recent::default(), Counts::default(), Instant::now());
        of(&counts).answers[4].fetch_add(20, Relaxed);
        recent.look(&counts, start);
        assert!(recent.is_failing());
        recent.look(&counts, start + FORGETS_AFTER / 2);
        assert_eq!(recent.failing(), Some((20, 20)));
        // 20, 10, 5, 2
        for number in 1..=3 {
            assert!(recent.is_failing());
            recent.look(&counts, start + number * FORGETS_AFTER);
        }
        assert!(!recent.is_failing());
    }
}
