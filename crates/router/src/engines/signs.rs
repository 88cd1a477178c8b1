//! Signs of life of an engine, and its longest silence.
//!
//! An engine that computes may answer no question for as long as that takes: SGLang's `/health` waits until the scheduler
//! has put something out. How long is long for one engine is learnt from what it did before.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::clock::millis;

/// The least silence of an engine at work that is death, in time-outs of a question, and at all.
const TIMEOUTS: u32 = 20;
const LEAST: Duration = Duration::from_secs(10);

/// A silence is too long if it exceeds the longest one that ended by this factor.
const TIMES: u32 = 2;

/// Signs of life of an engine other than bytes of its answers to requests, which its counts have.
#[derive(Debug, Default)]
pub(crate) struct Signs {
    /// Time of the last sign.
    last: AtomicU64,
    /// Requests that the engine last said to have.
    reported: AtomicU64,
    /// Time of the last sign of any kind, and the length of the silence since, as of the last look.
    seen: AtomicU64,
    silence: AtomicU64,
    /// The longest silence of the engine at work that a sign ended.
    longest: AtomicU64,
    /// Longest time of a successful health check.
    slowest: AtomicU64,
    /// The longest question that was given up since it last said so.
    given_up: AtomicU64,
}

impl Signs {
    /// Notes a sign of life.
    pub(crate) fn note(&self) {
        self.note_at(millis());
    }

    /// Notes a sign of life some time ago.
    pub(crate) fn note_ago(&self, ago: Duration) {
        self.note_at(millis().saturating_sub(ago.as_millis() as u64));
    }

    fn note_at(&self, at: u64) {
        self.last.fetch_max(at, Relaxed);
    }

    /// Time of the last sign.
    pub(crate) fn last(&self) -> u64 {
        self.last.load(Relaxed)
    }

    /// Notes how many requests the engine says it has, by its metrics.
    pub(crate) fn note_reported(&self, requests: f64) {
        self.reported.store(requests as u64, Relaxed);
    }

    /// Requests that the engine last said to have.
    pub(crate) fn reported(&self) -> u64 {
        self.reported.load(Relaxed)
    }

    /// Records the time of a successful health check.
    pub(crate) fn note_answer(&self, took: Duration) {
        self.note();
        self.slowest.fetch_max(took.as_millis() as u64, Relaxed);
        self.given_up.store(0, Relaxed);
    }

    /// Notes that a question was given up after so long: the next one is open for longer, as the answer may take longer.
    pub(crate) fn note_given_up(&self, after: Duration) {
        self.given_up.fetch_max(after.as_millis() as u64, Relaxed);
    }

    /// Looks again: the last sign of any kind was at `last`; `silence` is how long the engine has been at work without one.
    /// Learns how long silences are that end.
    pub(crate) fn look(&self, last: u64, silence: Duration) {
        let before = self.silence.swap(silence.as_millis() as u64, Relaxed);
        if self.seen.swap(last, Relaxed) < last {
            self.longest.fetch_max(before, Relaxed);
        }
    }

    /// The time without any sign after which an engine at work is dead.
    pub(crate) fn limit_at_work(&self, timeout: Duration) -> Duration {
        let longest = Duration::from_millis(self.longest.load(Relaxed).max(self.slowest.load(Relaxed)));
        (timeout * TIMEOUTS).max(longest * TIMES).max(LEAST)
    }

    /// The time without any sign after which an engine without work is dead.
    pub(crate) fn limit_idle(&self, timeout: Duration) -> Duration {
        let longest = Duration::from_millis(self.slowest.load(Relaxed).max(self.given_up.load(Relaxed)));
        (timeout.max(longest) * TIMES).min(self.limit_at_work(timeout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_engine_needs_is_learnt() {
        let (signs, timeout) = (Signs::default(), Duration::from_secs(2));
        let seconds = Duration::from_secs;
        assert_eq!((signs.limit_at_work(timeout), signs.limit_idle(timeout)), (seconds(40), seconds(4)));
        signs.look(1_000, seconds(0));
        signs.look(1_000, seconds(40));
        signs.look(1_000, seconds(0));
        assert_eq!(signs.limit_at_work(timeout), seconds(40), "its work was taken away, no sign came");
        signs.look(1_000, seconds(50));
        signs.look(51_000, seconds(0));
        assert_eq!((signs.limit_at_work(timeout), signs.limit_idle(timeout)), (seconds(100), seconds(4)));
        signs.note_answer(seconds(9));
        assert_eq!((signs.limit_at_work(timeout), signs.limit_idle(timeout)), (seconds(100), seconds(18)));
        signs.note_given_up(seconds(20));
        assert_eq!(signs.limit_idle(timeout), seconds(40));
        signs.note_given_up(seconds(90));
        assert_eq!(signs.limit_idle(timeout), seconds(100));
        assert_eq!(Signs::default().limit_at_work(Duration::from_millis(100)), LEAST);
    }
}
