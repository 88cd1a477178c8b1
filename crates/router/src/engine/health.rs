//! Tells whether an engine takes requests, by evidence: what came of requests, what it answers when asked, what it said
//! itself.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::millis;
use crate::config::HealthConfig;

/// Reason that stands against sending an engine requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthState {
    /// Nothing stands against it.
    Up,
    /// The engine does not answer when asked how it is.
    Down,
    /// Requests failed in a row; the engine is left alone for a while.
    Failing,
    /// The engine has requests and has not said a byte for long.
    Silent,
    /// The engine asked to be left alone for a while.
    Busy,
    /// An operator takes the engine out.
    Draining,
}

impl HealthState {
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

/// The evidence of how an engine does.
#[derive(Debug)]
pub(crate) struct Health {
    config: HealthConfig,
    /// Requests that failed in a row.
    failures: AtomicU32,
    /// Requests that got no answer in a row, for which they themselves may be the cause.
    doubts: AtomicU32,
    /// Wakes whoever asks the engine how it is.
    doubted: Notify,
    /// Number of times in a row that the engine was left alone.
    opened: AtomicU32,
    /// Time until which the engine is left alone; 0 if it is not.
    open_until: AtomicU64,
    /// True if a request is out to see if the engine works again.
    trial: AtomicBool,
    /// Questions that were not answered in a row.
    unanswered: AtomicU32,
    down: AtomicBool,
    /// Number of times that the engine went down. `went_down` wakes those who wait for that.
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

    pub(crate) fn standing(&self) -> HealthState {
        let now = millis();
        if self.draining.load(Relaxed) {
            HealthState::Draining
        } else if self.down.load(Relaxed) {
            HealthState::Down
        } else if self.is_open(now) {
            HealthState::Failing
        } else if self.silent.load(Relaxed) {
            HealthState::Silent
        } else if self.busy_until.load(Relaxed) > now {
            HealthState::Busy
        } else {
            HealthState::Up
        }
    }

    fn is_open(&self, now: u64) -> bool {
        match self.open_until.load(Relaxed) {
            0 => false,
            until => until > now || self.trial.load(Relaxed),
        }
    }

    /// Returns the time for which the engine asked to be left alone, from now on.
    pub(crate) fn busy_for(&self) -> Duration {
        Duration::from_millis(self.busy_until.load(Relaxed).saturating_sub(millis()))
    }

    /// Notes that a request goes to the engine. If that was left alone before, no other one goes there until this one
    /// has ended.
    pub(crate) fn sent(&self) {
        if self.open_until.load(Relaxed) != 0 {
            self.trial.store(true, Relaxed);
        }
    }

    /// Notes that the engine has answered a request.
    pub(crate) fn note_answer(&self) {
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

    /// Notes that a request has failed there. True if the engine is left alone from now on.
    pub(crate) fn note_failure(&self) -> bool {
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

    /// Notes that a request got no answer there, which may be its own fault: after some of them in a row the engine is
    /// asked how it is, and that decides.
    pub(crate) fn doubt(&self) {
        if self.trial.swap(false, Relaxed) {
            // No success: that it has failed before is all that is known.
            self.leave_alone(self.config.open);
        }
        if self.doubts.fetch_add(1, Relaxed) + 1 >= self.config.failures {
            self.doubted.notify_one();
        }
    }

    /// Waits until requests give reason to ask the engine how it is.
    pub(crate) async fn wait_for_doubt(&self) {
        self.doubted.notified().await;
    }

    /// Notes that a request has ended before it said anything of the engine.
    pub(crate) fn unknown(&self) {
        self.trial.store(false, Relaxed);
    }

    /// Notes whether the engine was well when asked. True if that changes something.
    pub(crate) fn note_check(&self, well: bool) -> bool {
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

    /// Number of times that the engine went down so far.
    pub(crate) fn downs(&self) -> u32 {
        self.downs.load(Acquire)
    }

    /// Waits until the number of times that the engine went down is not `downs` any more.
    pub(crate) async fn is_down_since(&self, downs: u32) {
        loop {
            let notified = self.went_down.notified();
            if self.downs() != downs {
                return;
            }
            notified.await;
        }
    }

    /// Notes whether the engine has been silent for too long. True if it has, and that is new.
    pub(crate) fn set_silent(&self, silent: bool) -> bool {
        !self.silent.swap(silent, Relaxed) && silent
    }

    /// Notes that the engine asks to be left alone for a while.
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
        assert!(!health.note_failure());
        health.note_answer();
        assert!(!health.note_failure() && health.note_failure());
        assert_eq!(health.standing(), HealthState::Failing);
        std::thread::sleep(Duration::from_millis(350));
        assert_eq!(health.standing(), HealthState::Up);
        health.sent();
        assert_eq!(health.standing(), HealthState::Failing, "one at a time");
        assert!(!health.note_failure(), "as before");
        assert_eq!(health.standing(), HealthState::Failing);
        std::thread::sleep(Duration::from_millis(650));
        health.sent();
        health.note_answer();
        assert_eq!(health.standing(), HealthState::Up);
        assert!(!health.note_failure());
    }

    #[test]
    fn a_trial_that_says_nothing_is_no_end() {
        let health = health(1, Duration::from_millis(1));
        assert!(health.note_failure());
        std::thread::sleep(Duration::from_millis(5));
        health.sent();
        health.unknown();
        assert_eq!(health.standing(), HealthState::Up);
    }

    #[test]
    fn a_trial_in_doubt_leaves_it_alone_for_longer() {
        let health = health(1, Duration::from_millis(200));
        assert!(health.note_failure());
        std::thread::sleep(Duration::from_millis(250));
        health.sent();
        health.doubt();
        assert_eq!(health.standing(), HealthState::Failing);
        std::thread::sleep(Duration::from_millis(250));
        assert_eq!(health.standing(), HealthState::Up, "for no longer than the first time");
    }

    #[test]
    fn requests_that_may_be_at_fault_are_settled_by_a_question() {
        let health = health(2, Duration::from_secs(9));
        health.doubt();
        health.doubt();
        assert_eq!(health.standing(), HealthState::Up);
        assert!(!health.note_check(true) && !health.note_check(false), "one answer missing is none too many");
        assert!(!health.note_check(true));
        health.doubt();
        health.doubt();
        assert!(health.note_check(false));
        assert_eq!(health.standing(), HealthState::Down);
    }

    #[test]
    fn questions_drain_and_pauses() {
        let health = health(3, Duration::from_secs(1));
        assert!(!health.note_check(false) && health.note_check(false) && !health.note_check(false));
        assert_eq!(health.standing(), HealthState::Down);
        assert!(health.note_check(true) && !health.note_check(true));
        health.set_busy(Duration::from_secs(9));
        assert_eq!(health.standing(), HealthState::Busy);
        assert!(health.busy_for() > Duration::from_secs(8));
        health.set_draining(true);
        assert_eq!(health.standing(), HealthState::Draining);
    }
}
