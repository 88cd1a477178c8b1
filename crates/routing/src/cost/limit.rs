//! Estimate of the largest number of requests that an engine runs at once: engines have this limit and do not announce
//! it.
//!
//! An engine at its limit repeatedly reports the same number of running requests, the largest that it ever reported,
//! although prompts wait for which its cache has room, and although requests end and others start. If prompts wait for
//! cache space or for each other instead, the number goes up and down. While one long prompt is computed, it stays the
//! same, so reports count as one if no request started between them.

/// Number of reports needed to conclude that an engine has a limit. Reports count as one if no request started between
/// them.
const ENOUGH: f64 = 4.0;
/// Largest number of reports that count in favour of a limit. Each report against it undoes two, so 15 of them make a
/// well-established limit unknown again.
const MOST: f64 = 32.0;
/// Share of the cache in use above which an engine's requests may be waiting for cache space rather than at a limit.
const ROOM: f64 = 0.85;

/// Estimate of the largest number of requests that one engine runs at once.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunningLimit {
    most: f64,
    score: f64,
    /// Time of the engine's last report, in seconds.
    at: f64,
    /// True if a request has started to run since the engine's last report that counted as evidence.
    has_begun: bool,
}

impl Default for RunningLimit {
    fn default() -> Self {
        Self { most: 0.0, score: 0.0, at: f64::NEG_INFINITY, has_begun: false }
    }
}

impl RunningLimit {
    /// True if an engine's report of these numbers of running and waiting requests is evidence for or against a limit
    /// of the requests that it runs at once.
    #[inline]
    pub(super) fn is_touched(&self, running: f64, waiting: f64) -> bool {
        running > self.most || waiting > 0.0
    }

    /// Records that a request has started to run, as seen by its first token.
    pub(super) fn begin(&mut self) {
        self.has_begun = true;
    }

    /// Applies an engine's report: numbers of running and waiting requests, share of the cache in use, and time of the
    /// report in seconds. A report that was applied before is ignored.
    pub(super) fn report(&mut self, running: f64, waiting: f64, usage: f64, at: f64) {
        if running > self.most {
            (self.most, self.score) = (running, 0.0);
        }
        if at <= self.at + 1e-3 || waiting <= 0.0 || usage > ROOM {
            return;
        }
        self.at = at;
        if running < self.most {
            self.score = (self.score - 2.0).max(0.0);
        } else if self.has_begun {
            self.score = (self.score + 1.0).min(MOST);
            self.has_begun = false;
        }
    }

    /// Estimated limit of the requests that the engine runs at once; infinite if unknown.
    #[inline]
    pub(super) fn get(&self) -> f64 {
        if self.score >= ENOUGH { self.most } else { f64::INFINITY }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies `times` reports, 20 per second, with `running` running requests and one waiting request.
    fn report(limit: &mut RunningLimit, times: u32, running: impl Fn(u32) -> f64, usage: f64) {
        let from = if limit.at.is_finite() { limit.at } else { 0.0 };
        for nth in 1..=times {
            limit.begin();
            limit.report(running(nth), 1.0, usage, from + 0.05 * f64::from(nth));
        }
    }

    #[test]
    fn a_number_that_is_reached_again_and_again_while_prompts_wait_is_the_limit() {
        let mut limit = RunningLimit::default();
        report(&mut limit, 3, |_| 32.0, 0.5);
        assert_eq!(limit.get(), f64::INFINITY);
        report(&mut limit, 1, |_| 32.0, 0.5);
        assert_eq!(limit.get(), 32.0);
        // A repeated report teaches nothing, nor does one without a waiting request.
        let before = limit.score;
        limit.report(31.0, 1.0, 0.5, limit.at);
        limit.report(20.0, 0.0, 0.5, limit.at + 1.0);
        assert_eq!(limit.score, before);
        // More run than that: it was none.
        limit.report(33.0, 0.0, 0.5, limit.at + 1.0);
        assert_eq!(limit.get(), f64::INFINITY);
    }

    #[test]
    fn prompts_that_wait_for_each_other_or_for_room_tell_no_limit() {
        let mut limit = RunningLimit::default();
        report(&mut limit, 1_000, |nth| 20.0 + f64::from(nth % 3), 0.5);
        assert_eq!(limit.get(), f64::INFINITY);
        let mut limit = RunningLimit::default();
        report(&mut limit, 1_000, |_| 6.0, 0.95);
        assert_eq!(limit.get(), f64::INFINITY);
        // A long prompt is computed, and no request starts or ends meanwhile.
        let mut limit = RunningLimit::default();
        (1..1_000).for_each(|nth| limit.report(6.0, 1.0, 0.5, 0.05 * f64::from(nth)));
        assert_eq!(limit.get(), f64::INFINITY);
        // It was raised on the way, and is not reached any more.
        let mut limit = RunningLimit::default();
        report(&mut limit, 100, |_| 8.0, 0.5);
        assert_eq!(limit.get(), 8.0);
        report(&mut limit, 40, |_| 5.0, 0.5);
        assert_eq!(limit.get(), f64::INFINITY);
    }
}
