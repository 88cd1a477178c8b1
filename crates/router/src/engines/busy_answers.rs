//! Answers of an engine that take no request (status 429 and 503) in the last minute, made of its counts now and then, so that
//! requests write nothing for them.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::counts::Counts;
use super::fault::Fault;

/// Time that is looked back at.
const MINUTE: Duration = Duration::from_secs(60);

/// Time between two samples that are kept.
const APART: Duration = Duration::from_secs(1);

/// Refused requests below which nothing is said.
const LEAST: u64 = 3;

/// Part of an engine's requests below which refusals are no condition.
const SHARE: u64 = 10;

/// Samples of an engine's counts over the last minute.
#[derive(Debug, Default, Clone)]
pub(crate) struct BusyAnswers(VecDeque<(Instant, Sample)>);

#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    /// Requests that the engine did not take.
    busy: u64,
    /// Requests that failed in another way.
    failed: u64,
    /// All its requests that have ended.
    all: u64,
}

/// Requests of the last minute that an engine did not take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RefusedRequests {
    pub(crate) requests: u64,
    pub(crate) of: u64,
    /// True if no request failed in another way.
    pub(crate) is_all: bool,
}

impl BusyAnswers {
    /// Takes in the counts as they are, and returns the requests that were not taken in the last minute, if they are many.
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
