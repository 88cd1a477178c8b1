//! How an engine's last requests ended, read from its counts now and then, so that requests write nothing for it.

use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

use super::Counts;
use crate::lock;

/// Requests beyond which the older half is forgotten.
const MOST: u64 = 40;

/// Failures below which nothing is said.
const LEAST: u64 = 3;

/// How the last requests ended.
#[derive(Debug, Default)]
pub(crate) struct Recent(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// Counted before the last look.
    failures: u64,
    answers: u64,
    /// Of the last requests.
    failed: u64,
    worked: u64,
}

impl Recent {
    /// Takes in what has happened since the last look.
    pub(crate) fn look(&self, counts: &Counts) {
        let sum = |counts: &[std::sync::atomic::AtomicU64]| counts.iter().map(|count| count.load(Relaxed)).sum::<u64>();
        let (others, errors) = counts.answers.split_at(counts.answers.len() - 1);
        // An answer that breaks off is a fault too, and so is one that says that the engine is busy.
        let failures = sum(&counts.faults).max(sum(errors));
        let answers = sum(others);
        let mut seen = lock(&self.0);
        seen.failed += failures.saturating_sub(seen.failures);
        seen.worked += answers.saturating_sub(seen.answers);
        (seen.failures, seen.answers) = (failures, answers);
        while seen.failed + seen.worked > MOST {
            seen.failed /= 2;
            seen.worked /= 2;
        }
    }

    /// How many of how many failed, if that is half of them or more.
    pub(crate) fn failing(&self) -> Option<(u64, u64)> {
        let seen = lock(&self.0);
        (seen.failed >= LEAST && seen.failed >= seen.worked).then_some((seen.failed, seen.failed + seen.worked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_requests_decide() {
        let (recent, counts) = (Recent::default(), Counts::default());
        counts.answers[4].fetch_add(2, Relaxed);
        recent.look(&counts);
        assert_eq!(recent.failing(), None, "two may be chance");
        counts.answers[4].fetch_add(2, Relaxed);
        counts.faults[1].fetch_add(5, Relaxed);
        recent.look(&counts);
        recent.look(&counts);
        assert_eq!(recent.failing(), Some((5, 5)));
        counts.answers[1].fetch_add(1_000_000, Relaxed);
        recent.look(&counts);
        assert_eq!(recent.failing(), None);
        counts.answers[4].fetch_add(1_000_000, Relaxed);
        recent.look(&counts);
        assert!(recent.failing().is_some());
    }
}
