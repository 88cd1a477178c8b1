//! Counters of an engine's requests: in total, of recent requests by outcome, and by model. The numbers about recent
//! requests are computed from the totals periodically, so that requests do no extra work for them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::fault::{Fault, NAMES as FAULTS};
use crate::histogram::{Histogram, REQUEST_SECONDS, SECONDS};

/// Counts of an engine's requests, answers and failures.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Counters of the engine's requests by model.
    pub(crate) models: EngineModels,
    /// Number of answers with which the engine rejected requests as busy: with status 429, and with status 503.
    pub(crate) not_taken: [AtomicU64; 2],
    /// Number of answers from the engine that broke off or ended with an error.
    pub(crate) broken: AtomicU64,
    /// Number of requests at the engine that clients cancelled.
    pub(crate) cancelled: AtomicU64,
    /// Number of requests that the engine is processing now.
    pub(crate) in_flight: AtomicUsize,
    /// Number of requests at the engine for which no byte of the answer's body has arrived.
    pub(crate) waiting: AtomicUsize,
    /// Time of the last byte from the engine, or of the first request after the engine was idle if later, in
    /// milliseconds of the router's clock.
    pub(crate) last_byte: AtomicU64,
    /// Number of connections opened to the engine.
    pub(crate) connections: AtomicU64,
    /// Number of answers with information about the engine, or lines or entries in them, that were dropped as too
    /// large.
    pub(crate) oversized: AtomicU64,
    /// Number of times that the router stopped sending requests to the engine because of failures.
    pub(crate) opened: AtomicU64,
}

impl Counts {
    /// Returns the number of answers over all models, by the first digit of their HTTP status, from 1 on.
    pub(crate) fn answers(&self) -> [u64; 5] {
        self.models.sum(|model| &model.answers)
    }

    /// Returns the number of faults over all models, by the kind of fault ([`FAULTS`]).
    pub(crate) fn faults(&self) -> [u64; FAULTS.len()] {
        self.models.sum(|model| &model.faults)
    }

    /// Returns the number of prompt tokens, over all models, that the engine reported as cached.
    pub(crate) fn cached_tokens(&self) -> u64 {
        self.models.total(|model| &model.cached_tokens)
    }
}

/// Maximum number of recent requests. Above it, the counts of recent requests are halved, so that old requests lose
/// weight.
const MOST: u64 = 40;

/// Minimum number of failed recent requests for an engine to be considered failing.
const LEAST: u64 = 3;

/// Time without a request after which the counts of recent requests are halved, so that an engine without requests
/// because of earlier failures is tried again.
const FORGETS_AFTER: Duration = Duration::from_secs(5);

/// Counts of an engine's recent requests, by success and failure.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    seen: Mutex<RecentCounts>,
    /// True if at least half of the recent requests had failed at the last update.
    is_failing: AtomicBool,
}

#[derive(Debug, Default)]
struct RecentCounts {
    /// Number of requests that had failed since the start, at the last update.
    failures: u64,
    answers: u64,
    /// Number of recent requests at the engine that failed.
    failed: u64,
    worked: u64,
    /// Time of the last update that found new requests or halved the counts of recent requests.
    last: Option<Instant>,
}

impl Recent {
    /// Updates the counts of recent requests from the totals in `counts`.
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

    /// True if at least half of the recent requests failed, as of the last update.
    pub(crate) fn is_failing(&self) -> bool {
        self.is_failing.load(Relaxed)
    }

    /// Returns the number of failed recent requests and of all recent ones, if at least half of them and at least
    /// [`LEAST`] failed; None otherwise.
    pub(crate) fn failing(&self) -> Option<(u64, u64)> {
        self.seen.lock().failing()
    }
}

impl RecentCounts {
    fn failing(&self) -> Option<(u64, u64)> {
        (self.failed >= LEAST && self.failed >= self.worked).then_some((self.failed, self.failed + self.worked))
    }
}

/// Period over which the requests that an engine refused as busy are counted.
const MINUTE: Duration = Duration::from_secs(60);

/// Minimum time between two samples of an engine's request counters.
const APART: Duration = Duration::from_secs(1);

/// Minimum share of refused requests for an engine to be reported as busy, as one in this number of its requests.
const SHARE: u64 = 10;

/// Samples of an engine's request counters over the last minute.
#[derive(Debug, Default, Clone)]
pub(crate) struct BusyAnswers(VecDeque<(Instant, Sample)>);

#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    /// Number of requests that the engine refused as busy since the start.
    busy: u64,
    /// Number of requests that failed for other reasons since the start.
    failed: u64,
    /// Number of all requests at the engine that have ended since the start.
    all: u64,
}

/// Requests of the last minute that an engine refused as busy: their number, and the number of all requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RefusedRequests {
    pub(crate) requests: u64,
    pub(crate) of: u64,
    /// True if no request of the last minute failed for another reason.
    pub(crate) is_all: bool,
}

impl BusyAnswers {
    /// Samples the engine's counters; returns the requests refused as busy in the last minute if their share is high,
    /// else None.
    pub(crate) fn look(&mut self, counts: &Counts, now: Instant) -> Option<RefusedRequests> {
        let busy = counts.not_taken.iter().map(|count| count.load(Relaxed)).sum::<u64>();
        // An answer that says so is a fault as well if the request was then sent elsewhere.
        let (faults, answers) = (counts.faults(), counts.answers());
        let (before, after) = faults.split_at(Fault::Busy(429).number());
        let others = before.iter().sum::<u64>() + after[1..].iter().sum::<u64>();
        let errors = answers[4].saturating_sub(counts.not_taken[1].load(Relaxed));
        let failed = others.max(errors);
        let taken = answers[1];
        let sample = Sample { busy, failed, all: failed + busy + taken };
        let samples = &mut self.0;
        if samples.back().is_none_or(|(at, _)| now.duration_since(*at) >= APART) {
            samples.push_back((now, sample));
        }
        while samples.len() > 1 && now.duration_since(samples[0].0) > MINUTE {
            samples.pop_front();
        }
        let first = samples.front().map(|(_, first)| *first).unwrap_or_default();
        let (requests, of) = (busy - first.busy, sample.all.saturating_sub(first.all));
        let is_all = failed <= first.failed;
        (requests >= LEAST && requests * SHARE >= of).then_some(RefusedRequests { requests, of, is_all })
    }
}

/// Counters of the requests for one model at one engine.
#[derive(Debug)]
pub(crate) struct EngineModelCounts {
    /// Name of the model in the metrics.
    pub(crate) model: Arc<str>,
    /// Number of answers, by the first digit of their HTTP status, from 1 on.
    pub(crate) answers: [AtomicU64; 5],
    /// Number of requests that got no answer, or an error in place of the answer or at its end, by the kind of fault
    /// ([`FAULTS`]).
    pub(crate) faults: [AtomicU64; FAULTS.len()],
    /// Histogram of the times from a request's arrival to the first token of its streamed answer, in seconds.
    pub(crate) first_token: Histogram<16>,
    /// Histogram of the times from a request's arrival to the end of its complete answer, in seconds.
    pub(crate) duration: Histogram<16>,
    /// Number of cached prompt tokens that the engine reported.
    pub(crate) cached_tokens: AtomicU64,
    /// Number of prompt tokens in the requests for which the engine reported cached tokens.
    pub(crate) prompt_tokens: AtomicU64,
    /// Number of generated tokens, as reported by the engine.
    pub(crate) output_tokens: AtomicU64,
}

impl EngineModelCounts {
    pub(crate) fn new(model: Arc<str>) -> Self {
        Self {
            model,
            answers: Default::default(),
            faults: Default::default(),
            first_token: Histogram::new(&SECONDS),
            duration: Histogram::new(&REQUEST_SECONDS),
            cached_tokens: AtomicU64::new(0),
            prompt_tokens: AtomicU64::new(0),
            output_tokens: AtomicU64::new(0),
        }
    }
}

/// Counters of an engine's requests for each requested model.
#[derive(Debug, Default)]
pub(crate) struct EngineModels(ArcSwap<Vec<Arc<EngineModelCounts>>>);

impl EngineModels {
    /// Returns the counters of a model, which are created at the first call.
    pub(crate) fn of(&self, model: &Arc<str>) -> Arc<EngineModelCounts> {
        loop {
            // Nearly always there is one.
            if let Some(known) = self.0.load().iter().find(|counts| counts.model == *model) {
                return known.clone();
            }
            let made = Arc::new(EngineModelCounts::new(model.clone()));
            self.0.rcu(|all| {
                let is_there = all.iter().any(|counts| counts.model == *model);
                let more = (!is_there).then(|| made.clone());
                all.iter().cloned().chain(more).collect::<Vec<_>>()
            });
        }
    }

    /// Returns the counters of all models.
    pub(crate) fn all(&self) -> Arc<Vec<Arc<EngineModelCounts>>> {
        self.0.load_full()
    }

    /// Adds up an array of counters over all models; `of` selects the array.
    pub(crate) fn sum<const N: usize>(&self, of: impl Fn(&EngineModelCounts) -> &[AtomicU64; N]) -> [u64; N] {
        let mut sums = [0; N];
        for counts in self.0.load().iter() {
            for (sum, count) in sums.iter_mut().zip(of(counts)) {
                *sum += count.load(Relaxed);
            }
        }
        sums
    }

    /// Adds up one counter over all models; `of` selects the counter.
    pub(crate) fn total(&self, of: impl Fn(&EngineModelCounts) -> &AtomicU64) -> u64 {
        self.0.load().iter().map(|counts| of(counts).load(Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engines::counts::EngineModelCounts;

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

    #[test]
    fn refusals_count_for_a_minute_and_only_if_they_are_many() {
        let (mut seen, counts, start) = (BusyAnswers::default(), Counts::default(), Instant::now());
        let model = counts.models.of(&std::sync::Arc::from("m"));
        let refuse = |count| {
            model.answers[4].fetch_add(count, Relaxed);
            counts.not_taken[1].fetch_add(count, Relaxed);
            model.faults[Fault::Busy(503).number()].fetch_add(count, Relaxed);
        };
        assert_eq!(seen.look(&counts, start), None);
        refuse(2);
        assert_eq!(seen.look(&counts, start + APART), None, "two may be chance");
        refuse(1);
        let three = RefusedRequests { requests: 3, of: 3, is_all: true };
        assert_eq!(seen.look(&counts, start + 2 * APART), Some(three));
        assert_eq!(seen.look(&counts, start + MINUTE), Some(three));
        assert_eq!(seen.look(&counts, start + 2 * MINUTE), None, "they are long ago");
        refuse(3);
        model.answers[1].fetch_add(100, Relaxed);
        assert_eq!(seen.look(&counts, start + 2 * MINUTE + APART), None, "it takes nearly all");
        refuse(20);
        model.faults[0].fetch_add(1, Relaxed);
        let many = seen.look(&counts, start + 2 * MINUTE + 2 * APART).expect("many");
        assert_eq!((many.requests, many.of, many.is_all), (23, 124, false));
    }

    #[test]
    fn a_model_is_counted_in_one_place() {
        let (models, name) = (EngineModels::default(), Arc::from("m"));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        models.of(&name).prompt_tokens.fetch_add(1, Relaxed);
                    }
                });
            }
        });
        models.of(&Arc::from("other")).answers[4].fetch_add(2, Relaxed);
        models.of(&Arc::from("m")).answers[4].fetch_add(1, Relaxed);
        assert_eq!((models.all().len(), models.total(|counts| &counts.prompt_tokens)), (2, 4000));
        assert_eq!(models.sum(|counts| &counts.answers), [0, 0, 0, 0, 3]);
    }
}
