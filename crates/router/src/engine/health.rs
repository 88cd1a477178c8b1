//! Whether an engine takes requests, by evidence: what came of requests, what it answers when asked, what it said itself.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::millis;
use crate::config::HealthConfig;

/// What stands against sending an engine requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Nothing.
    Up,
    /// It does not answer when asked how it is.
    Down,
    /// Requests failed in a row; it is left alone for a while.
    Failing,
    /// It has requests and has not said a byte for long.
    Silent,
    /// It asked to be left alone for a while.
    Busy,
    /// An operator takes it out.
    Draining,
}

impl Standing {
    /// The name in answers and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Failing => "failing",
            Self::Silent => "silent",
            Self::Busy => "busy",
            Self::Draining => "draining",
        }
    }
}

/// The evidence.
#[derive(Debug)]
pub(crate) struct Health {
    config: HealthConfig,
    /// Requests that failed in a row.
    failures: AtomicU32,
    /// Requests that got no answer in a row, for which they themselves may be the cause.
    doubts: AtomicU32,
    /// Wakes whoever asks it how it is.
    doubted: Notify,
    /// How often in a row it was left alone.
    opened: AtomicU32,
    /// Until when it is left alone; 0 if it is not.
    open_until: AtomicU64,
    /// Whether a request is out to see if it works again.
    trial: AtomicBool,
    /// Questions that were not answered in a row.
    unanswered: AtomicU32,
    down: AtomicBool,
    /// How often it went down, and who waits for that.
    downs: AtomicU32,
    went_down: Notify,
    silent: AtomicBool,
    busy_until: AtomicU64,
    draining: AtomicBool,
}

impl Health {
    pub(crate) fn new(config: &HealthConfig) -> Self {
        Self {
            config: config.clone(),
            failures: AtomicU32::new(0),
            doubts: AtomicU32::new(0),
            doubted: Notify::new(),
            opened: AtomicU32::new(0),
            open_until: AtomicU64::new(0),
            trial: AtomicBool::new(false),
            unanswered: AtomicU32::new(0),
            down: AtomicBool::new(false),
            downs: AtomicU32::new(0),
            went_down: Notify::new(),
            silent: AtomicBool::new(false),
            busy_until: AtomicU64::new(0),
            draining: AtomicBool::new(false),
        }
    }

    pub(crate) fn standing(&self) -> Standing {
        let now = millis();
        if self.draining.load(Relaxed) {
            Standing::Draining
        } else if self.down.load(Relaxed) {
            Standing::Down
        } else if self.is_open(now) {
            Standing::Failing
        } else if self.silent.load(Relaxed) {
            Standing::Silent
        } else if self.busy_until.load(Relaxed) > now {
            Standing::Busy
        } else {
            Standing::Up
        }
    }

    fn is_open(&self, now: u64) -> bool {
        match self.open_until.load(Relaxed) {
            0 => false,
            until => until > now || self.trial.load(Relaxed),
        }
    }

    /// For how long it asked to be left alone from now on.
    pub(crate) fn busy_for(&self) -> Duration {
        Duration::from_millis(self.busy_until.load(Relaxed).saturating_sub(millis()))
    }

    /// A request goes there. If it was left alone before, no other one does until this one has ended.
    pub(crate) fn sent(&self) {
        if self.open_until.load(Relaxed) != 0 {
            self.trial.store(true, Relaxed);
        }
    }

    /// It has answered a request.
    pub(crate) fn worked(&self) {
        self.silent.store(false, Relaxed);
        if self.doubts.load(Relaxed) != 0 {
            self.doubts.store(0, Relaxed);
        }
        if self.failures.load(Relaxed) != 0 || self.open_until.load(Relaxed) != 0 {
            self.failures.store(0, Relaxed);
            self.opened.store(0, Relaxed);
            self.open_until.store(0, Relaxed);
            self.trial.store(false, Relaxed);
        }
    }

    /// A request has failed there. True if it is left alone from now on.
    pub(crate) fn failed(&self) -> bool {
        let failures = self.failures.fetch_add(1, Relaxed) + 1;
        let was_trial = self.trial.swap(false, Relaxed);
        if failures < self.config.failures && !was_trial {
            return false;
        }
        let times = self.opened.fetch_add(1, Relaxed).min(16);
        self.leave_alone(self.config.open.saturating_mul(1 << times).min(self.config.open_max));
        !was_trial
    }

    fn leave_alone(&self, pause: Duration) {
        self.open_until.store(millis() + (pause.as_millis() as u64).max(1), Relaxed);
    }

    /// A request got no answer there, which may be its own fault: after some of them in a row the engine is asked how it
    /// is, and that decides.
    pub(crate) fn doubt(&self) {
        if self.trial.swap(false, Relaxed) {
            // No success: that it has failed before is all that is known.
            self.leave_alone(self.config.open);
        }
        if self.doubts.fetch_add(1, Relaxed) + 1 >= self.config.failures {
            self.doubted.notify_one();
        }
    }

    /// Until requests give reason to ask it how it is.
    pub(crate) async fn doubted(&self) {
        self.doubted.notified().await;
    }

    /// A request has ended before it said anything of the engine.
    pub(crate) fn unknown(&self) {
        self.trial.store(false, Relaxed);
    }

    /// It was asked how it is. True if that changes something.
    pub(crate) fn asked(&self, well: bool) -> bool {
        if well {
            self.unanswered.store(0, Relaxed);
            self.doubts.store(0, Relaxed);
            return self.down.swap(false, Relaxed);
        }
        let unanswered = self.unanswered.fetch_add(1, Relaxed) + 1;
        let is_doubted = self.doubts.load(Relaxed) >= self.config.failures;
        let goes_down = (is_doubted || unanswered >= self.config.failures.min(2)) && !self.down.swap(true, Relaxed);
        if goes_down {
            self.downs.fetch_add(1, Release);
            self.went_down.notify_waiters();
        }
        goes_down
    }

    /// How often it went down so far.
    pub(crate) fn downs(&self) -> u32 {
        self.downs.load(Acquire)
    }

    /// Until it has gone down more often than so many times.
    pub(crate) async fn is_down_since(&self, downs: u32) {
        loop {
            let notified = self.went_down.notified();
            if self.downs() != downs {
                return;
            }
            notified.await;
        }
    }

    /// Whether it has been silent for too long. True if that is new.
    pub(crate) fn set_silent(&self, silent: bool) -> bool {
        !self.silent.swap(silent, Relaxed) && silent
    }

    /// It asks to be left alone.
    pub(crate) fn set_busy(&self, pause: Duration) {
        self.busy_until.fetch_max(millis() + pause.as_millis() as u64, Relaxed);
    }

    pub(crate) fn set_draining(&self, draining: bool) {
        self.draining.store(draining, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(failures: u32, open: Duration) -> Health {
        Health::new(&HealthConfig { failures, open, ..HealthConfig::default() })
    }

    #[test]
    fn failures_in_a_row_leave_it_alone_and_one_request_tries_again() {
        let health = health(2, Duration::from_millis(300));
        assert!(!health.failed());
        health.worked();
        assert!(!health.failed() && health.failed());
        assert_eq!(health.standing(), Standing::Failing);
        std::thread::sleep(Duration::from_millis(350));
        assert_eq!(health.standing(), Standing::Up);
        health.sent();
        assert_eq!(health.standing(), Standing::Failing, "one at a time");
        assert!(!health.failed(), "as before");
        assert_eq!(health.standing(), Standing::Failing);
        std::thread::sleep(Duration::from_millis(650));
        health.sent();
        health.worked();
        assert_eq!(health.standing(), Standing::Up);
        assert!(!health.failed());
    }

    #[test]
    fn a_trial_that_says_nothing_is_no_end() {
        let health = health(1, Duration::from_millis(1));
        assert!(health.failed());
        std::thread::sleep(Duration::from_millis(5));
        health.sent();
        health.unknown();
        assert_eq!(health.standing(), Standing::Up);
    }

    #[test]
    fn a_trial_in_doubt_leaves_it_alone_for_longer() {
        let health = health(1, Duration::from_millis(200));
        assert!(health.failed());
        std::thread::sleep(Duration::from_millis(250));
        health.sent();
        health.doubt();
        assert_eq!(health.standing(), Standing::Failing);
        std::thread::sleep(Duration::from_millis(250));
        assert_eq!(health.standing(), Standing::Up, "for no longer than the first time");
    }

    #[test]
    fn requests_that_may_be_at_fault_are_settled_by_a_question() {
        let health = health(2, Duration::from_secs(9));
        health.doubt();
        health.doubt();
        assert_eq!(health.standing(), Standing::Up);
        assert!(!health.asked(true) && !health.asked(false), "one answer missing is none too many");
        assert!(!health.asked(true));
        health.doubt();
        health.doubt();
        assert!(health.asked(false));
        assert_eq!(health.standing(), Standing::Down);
    }

    #[test]
    fn questions_drain_and_pauses() {
        let health = health(3, Duration::from_secs(1));
        assert!(!health.asked(false) && health.asked(false) && !health.asked(false));
        assert_eq!(health.standing(), Standing::Down);
        assert!(health.asked(true) && !health.asked(true));
        health.set_busy(Duration::from_secs(9));
        assert_eq!(health.standing(), Standing::Busy);
        assert!(health.busy_for() > Duration::from_secs(8));
        health.set_draining(true);
        assert_eq!(health.standing(), Standing::Draining);
    }
}
