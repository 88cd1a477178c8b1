//! Health of an engine: decides whether the engine gets requests, from the outcomes of requests, from health checks,
//! and from reports of the engine such as being asleep.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;

use tokio::sync::Notify;

use super::health_check::Sleep;
use crate::clock::millis;
use crate::config::HealthConfig;

/// Minimum time, in milliseconds, for which an engine's event streams must be interrupted for its events to be
/// considered missing. An engine that comes back answers requests before its event streams are connected.
const MISSED_FOR: u64 = 1_000;

/// Time, in milliseconds, after an engine was down during which a lack of events from the engine is ignored. Event
/// streams are normally connected again within this time.
const RECONNECTED_WITHIN: u64 = 5_000;

/// State of an engine that decides whether the engine gets requests; every state but `Up` is a reason to send none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HealthState {
    /// The engine works and gets requests from the router.
    Up,
    /// The engine does not answer the health check.
    Down,
    /// Several successive requests failed; the engine gets no requests for a while.
    Failing,
    /// The engine has open requests and has not sent a byte for longer than the configured time.
    Silent,
    /// The engine works, but did not answer the health check in time.
    Busy,
    /// The engine requested a pause, for example by a `Retry-After` header.
    Paused,
    /// The engine is asleep: its weights are offloaded until it is woken.
    Asleep,
    /// The operator or discovery drains the engine, so that it gets no new requests.
    Draining,
}

impl HealthState {
    /// Names of all states in answers and metrics, without repetition.
    pub(crate) const NAMES: [&str; 7] = ["up", "down", "failing", "silent", "busy", "asleep", "draining"];

    /// Returns the name of the state in answers and metrics.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Failing => "failing",
            Self::Silent => "silent",
            // Both take no more at present.
            Self::Busy | Self::Paused => "busy",
            Self::Asleep => "asleep",
            Self::Draining => "draining",
        }
    }
}

/// Outcome of a health check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Finding {
    /// Successful health check, so that the engine works.
    Well,
    /// Late answer to the health check by an engine that works. The text is the reason; open requests stay at the
    /// engine.
    Busy(String),
    /// Failed health check or failed connection; two failures in a row mean that the engine is down. The text is the
    /// reason.
    Unwell(String),
    /// Proof that the engine is dead; the text is the reason.
    Dead(String),
}

impl Finding {
    /// Returns the reason why the health check was not successful; None if it was successful.
    pub(crate) fn why_not(&self) -> Option<&str> {
        match self {
            Self::Well => None,
            Self::Busy(why) | Self::Unwell(why) | Self::Dead(why) => Some(why),
        }
    }
}

/// Party that can drain an engine, so that it gets no new requests. The engine gets new requests again when neither
/// party drains it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainedBy {
    /// The operator of the router, or a client with the admin key.
    Operator = 1,
    /// The source that discovered the engine, for example because the engine's pod is not ready or is terminating.
    Discovery = 2,
}

/// Health of an engine, computed from its answers and failures.
#[derive(Debug)]
pub(crate) struct Health {
    config: HealthConfig,
    /// Number of successive failed requests.
    failures: AtomicU32,
    /// Number of successive requests without an answer that may have failed because of the requests themselves, not the
    /// engine.
    doubts: AtomicU32,
    /// Signal to the task for health checks to make a check at once.
    doubted: Notify,
    /// Number of successive times that the engine was excluded from routing because of failed requests.
    opened: AtomicU32,
    /// Time until which the engine gets no requests because of failures, in milliseconds of the router's clock; 0
    /// while failures do not exclude it.
    open_until: AtomicU64,
    /// True while a single trial request tests whether an engine that failed works again.
    trial: AtomicBool,
    /// Number of successive failed health checks.
    unwell: AtomicU32,
    /// True if the engine works, but has not answered the last health check in time.
    late: AtomicBool,
    pub(crate) sleep: Sleep,
    down: AtomicBool,
    /// Number of times that the engine went down. Tasks that wait for a change are woken by `went_down`.
    downs: AtomicU32,
    went_down: Notify,
    silent: AtomicBool,
    busy_until: AtomicU64,
    /// Time at which the last successful health check began, in milliseconds of the router's clock.
    well_at: AtomicU64,
    /// Time since which the engine's events have been missing without the engine being down, in milliseconds; 0 while
    /// they are not missing.
    events_missing_since: AtomicU64,
    /// Time at which the engine was last seen to be down, in milliseconds; 0 if it never was.
    last_down: AtomicU64,
    /// Set of the parties that drain the engine, with one bit for each party in [`DrainedBy`].
    draining: AtomicU32,
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
            unwell: AtomicU32::new(0),
            late: AtomicBool::new(false),
            sleep: Sleep::default(),
            down: AtomicBool::new(false),
            downs: AtomicU32::new(0),
            went_down: Notify::new(),
            silent: AtomicBool::new(false),
            busy_until: AtomicU64::new(0),
            well_at: AtomicU64::new(0),
            events_missing_since: AtomicU64::new(0),
            last_down: AtomicU64::new(0),
            draining: AtomicU32::new(0),
        }
    }

    pub(crate) fn standing(&self) -> HealthState {
        // It is asked of each engine for each request, and nearly always needs no look at the clock.
        let is_ahead = |until: &AtomicU64| match until.load(Relaxed) {
            0 => false,
            until => until > millis(),
        };
        if self.draining.load(Relaxed) != 0 {
            HealthState::Draining
        } else if self.down.load(Relaxed) {
            HealthState::Down
        } else if self.sleep.is_asleep() {
            HealthState::Asleep
        } else if self.open_until.load(Relaxed) != 0 && (is_ahead(&self.open_until) || self.trial.load(Relaxed)) {
            HealthState::Failing
        } else if self.silent.load(Relaxed) {
            HealthState::Silent
        } else if is_ahead(&self.busy_until) {
            HealthState::Paused
        } else if self.late.load(Relaxed) {
            HealthState::Busy
        } else {
            HealthState::Up
        }
    }

    /// Returns the remaining time of the pause that the engine requested; zero without a pause.
    pub(crate) fn busy_for(&self) -> Duration {
        Duration::from_millis(self.busy_until.load(Relaxed).saturating_sub(millis()))
    }

    /// Records that a request is sent to the engine. If the engine was excluded because of failures, this request is a
    /// trial, and no other request is sent until the trial has ended.
    pub(crate) fn sent(&self) {
        if self.open_until.load(Relaxed) != 0 {
            self.trial.store(true, Relaxed);
        }
    }

    /// Records that the engine answered a request. The answer ends an exclusion from routing because of failures.
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

    /// Records a failed request. Returns true if this failure excludes the engine from routing for a while.
    pub(crate) fn note_failure(&self) -> bool {
        let failures = self.failures.fetch_add(1, Relaxed) + 1;
        let was_trial = self.trial.swap(false, Relaxed);
        if failures < self.config.failures && !was_trial {
            return false;
        }
        if !was_trial && self.open_until.load(Relaxed) > millis() {
            // It is left alone already: this one was sent before that, or as no other engine was better.
            return false;
        }
        let times = self.opened.fetch_add(1, Relaxed).min(16);
        self.leave_alone(self.config.open.saturating_mul(1 << times).min(self.config.open_max));
        !was_trial
    }

    fn leave_alone(&self, pause: Duration) {
        self.open_until.store(millis() + (pause.as_millis() as u64).max(1), Relaxed);
    }

    /// Records a request without an answer that may have failed because of the request itself. Several of these
    /// requests in a row cause a health check.
    pub(crate) fn doubt(&self) {
        if self.trial.swap(false, Relaxed) {
            // No success: that it has failed before is all that is known.
            self.leave_alone(self.config.open);
        }
        if self.doubts.fetch_add(1, Relaxed) + 1 >= self.config.failures {
            self.doubted.notify_one();
        }
    }

    /// Waits until an immediate health check is requested, because of unanswered requests or by `check_soon`.
    pub(crate) async fn wait_for_doubt(&self) {
        self.doubted.notified().await;
    }

    /// Records that a request ended without evidence for or against the engine's health.
    pub(crate) fn unknown(&self) {
        self.trial.store(false, Relaxed);
    }

    /// Returns the time within which the engine must answer a health check to count as not busy.
    pub(crate) fn time_limit(&self) -> Duration {
        self.config.timeout
    }

    /// Records that a working engine did not answer a health check in time. Returns true if the engine was not late
    /// before.
    pub(crate) fn note_late(&self) -> bool {
        !self.late.swap(true, Relaxed)
    }

    /// Records the outcome of a health check. Returns true if the outcome changes the state of the engine to down, or
    /// from down to well.
    pub(crate) fn note_check(&self, found: &Finding) -> bool {
        match found {
            Finding::Well => {
                self.unwell.store(0, Relaxed);
                self.doubts.store(0, Relaxed);
                let was_late = self.late.swap(false, Relaxed);
                let was_down = self.down.swap(false, Relaxed);
                if was_down && self.open_until.load(Relaxed) != 0 {
                    // The failures were those of its former life: one request may try at once.
                    self.open_until.store(1, Relaxed);
                    self.trial.store(false, Relaxed);
                }
                was_down || was_late
            }
            Finding::Busy(_) => {
                self.unwell.store(0, Relaxed);
                self.note_late();
                false
            }
            Finding::Unwell(_) => {
                let times = self.unwell.fetch_add(1, Relaxed) + 1;
                let is_doubted = self.doubts.load(Relaxed) >= self.config.failures;
                (is_doubted || times >= self.config.failures.min(2)) && self.go_down()
            }
            Finding::Dead(_) => self.go_down(),
        }
    }

    /// Records that the engine is down. Returns true if the engine was not down before.
    fn go_down(&self) -> bool {
        if self.down.swap(true, Relaxed) {
            return false;
        }
        self.late.store(false, Relaxed);
        self.sleep.forget();
        self.downs.fetch_add(1, Release);
        self.went_down.notify_waiters();
        true
    }

    /// True if the engine is down.
    pub(crate) fn is_down(&self) -> bool {
        self.down.load(Relaxed)
    }

    /// Number of times that the engine has gone down so far.
    pub(crate) fn downs(&self) -> u32 {
        self.downs.load(Acquire)
    }

    /// Waits until the count of times that the engine went down differs from `downs`.
    pub(crate) async fn is_down_since(&self, downs: u32) {
        loop {
            let notified = self.went_down.notified();
            if self.downs() != downs {
                return;
            }
            notified.await;
        }
    }

    /// Records a successful health check. `began`: time at which the check began, in milliseconds of the router's
    /// clock.
    pub(crate) fn note_well(&self, began: u64) {
        self.well_at.store(began, Relaxed);
    }

    /// True if a successful health check began at time `at`, in milliseconds of the router's clock, or later; also true
    /// if health checks are off.
    pub(crate) fn is_well_since(&self, at: u64) -> bool {
        self.config.interval.is_zero() || self.well_at.load(Relaxed) >= at
    }

    /// Requests an immediate health check of the engine.
    pub(crate) fn check_soon(&self) {
        self.doubted.notify_one();
    }

    /// Records whether the engine's events are missing at time `now`, in milliseconds. True if only the events are at
    /// fault: they have been missing for [`MISSED_FOR`], and the engine has answered a health check since. In other
    /// cases the engine itself may be down or only just back. Requests a health check when events first go missing.
    pub(crate) fn lacks_only_events(&self, missing: bool, now: u64) -> bool {
        if self.is_down() {
            self.last_down.store(now, Relaxed);
        }
        if !missing || self.is_down() {
            self.events_missing_since.store(0, Relaxed);
            return false;
        }
        if self.config.interval.is_zero() {
            return true;
        }
        let since = match self.events_missing_since.load(Relaxed) {
            0 => {
                self.events_missing_since.store(now.max(1), Relaxed);
                self.doubted.notify_one();
                now
            }
            since => since,
        };
        let down_at = self.last_down.load(Relaxed);
        let is_reconnected = down_at == 0 || now.saturating_sub(down_at) >= RECONNECTED_WITHIN;
        is_reconnected && now.saturating_sub(since) >= MISSED_FOR && self.well_at.load(Relaxed) >= since
    }

    /// Records whether an engine with open requests has sent nothing for too long. Returns true if the engine becomes
    /// silent by this call.
    pub(crate) fn set_silent(&self, silent: bool) -> bool {
        !self.silent.swap(silent, Relaxed) && silent
    }

    /// Records that the engine requested a pause of the length `pause`.
    pub(crate) fn set_busy(&self, pause: Duration) {
        self.busy_until.fetch_max(millis() + pause.as_millis() as u64, Relaxed);
    }

    /// True if the operator or discovery drains the engine.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Relaxed) != 0
    }

    /// Records whether the party `by` drains the engine. Returns true if any party drains the engine afterwards.
    pub(crate) fn set_draining(&self, by: DrainedBy, draining: bool) -> bool {
        let bit = by as u32;
        let after = if draining {
            self.draining.fetch_or(bit, Relaxed) | bit
        } else {
            self.draining.fetch_and(!bit, Relaxed) & !bit
        };
        after != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(failures: u32, open: Duration) -> Health {
        Health::new(&HealthConfig { failures, open, ..HealthConfig::default() })
    }

    fn unwell() -> Finding {
        Finding::Unwell("503".to_owned())
    }

    #[test]
    fn late_answers_of_an_engine_that_works_are_no_death() {
        let health = health(2, Duration::from_secs(1));
        let busy = Finding::Busy("late".to_owned());
        assert!(health.note_late() && !health.note_late());
        for _ in 0..9 {
            assert!(!health.note_check(&unwell()) && !health.note_check(&busy));
            assert_eq!((health.standing(), health.downs()), (HealthState::Busy, 0));
        }
        assert!(health.note_check(&Finding::Well) && !health.note_check(&Finding::Well));
        assert_eq!(health.standing(), HealthState::Up);
        assert!(health.note_check(&Finding::Dead("gone".to_owned())));
        assert_eq!((health.standing(), health.downs()), (HealthState::Down, 1));
        assert!(!health.note_check(&busy));
        assert_eq!(health.standing(), HealthState::Down, "only an answer shows that it is well");
    }

    #[test]
    fn failures_in_a_row_leave_it_alone_and_one_request_tries_again() {
        let health = health(2, Duration::from_millis(300));
        assert!(!health.note_failure());
        health.note_answer();
        assert!(!health.note_failure() && health.note_failure());
        assert_eq!(health.standing(), HealthState::Failing);
        assert!((0..9).all(|_| !health.note_failure()), "those that were on their way say nothing new");
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
    fn one_request_tries_as_soon_as_a_failing_engine_is_back_from_the_dead() {
        let health = health(1, Duration::from_secs(9));
        assert!(health.note_failure());
        assert!(!health.note_check(&Finding::Well));
        assert_eq!(health.standing(), HealthState::Failing, "an answer to a health check alone is no reason");
        assert!(health.note_check(&Finding::Dead("gone".to_owned())) && health.note_check(&Finding::Well));
        assert_eq!(health.standing(), HealthState::Up);
        health.sent();
        assert_eq!(health.standing(), HealthState::Failing, "one at a time");
        assert!(!health.note_failure());
        assert!(health.open_until.load(Relaxed) > millis() + 17_000, "a failure counts with those before");
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
        assert!(!health.note_check(&Finding::Well) && !health.note_check(&unwell()), "once may be chance");
        assert!(!health.note_check(&Finding::Well));
        health.doubt();
        health.doubt();
        assert!(health.note_check(&unwell()));
        assert_eq!(health.standing(), HealthState::Down);
    }

    #[test]
    fn questions_drain_and_pauses() {
        let health = health(3, Duration::from_secs(1));
        let checked = |found: Finding| health.note_check(&found);
        assert!(!checked(unwell()) && checked(unwell()) && !checked(unwell()));
        assert_eq!(health.standing(), HealthState::Down);
        assert!(checked(Finding::Well) && !checked(Finding::Well));
        health.set_busy(Duration::from_secs(9));
        assert_eq!(health.standing(), HealthState::Paused);
        assert!(health.busy_for() > Duration::from_secs(8));
        health.set_draining(DrainedBy::Operator, true);
        assert_eq!(health.standing(), HealthState::Draining);
    }

    #[test]
    fn missing_events_count_once_the_engine_has_answered() {
        let health = health(2, Duration::from_secs(1));
        let (start, later) = (5_000, 5_000 + MISSED_FOR);
        health.note_well(start - 1);
        assert!(!health.lacks_only_events(true, start), "only just");
        assert!(!health.lacks_only_events(true, later), "it has not answered since, and may be gone");
        health.note_well(start + 1);
        assert!(!health.lacks_only_events(true, later - 1) && health.lacks_only_events(true, later));
        assert!(
            !health.lacks_only_events(false, later) && !health.lacks_only_events(true, later),
            "they came meanwhile"
        );
        health.note_check(&Finding::Dead("gone".to_owned()));
        assert!(!health.lacks_only_events(true, 2 * later), "it is gone");
        health.note_check(&Finding::Well);
        health.note_well(3 * later);
        let back = 2 * later + RECONNECTED_WITHIN;
        assert!(!health.lacks_only_events(true, 2 * later + 1) && !health.lacks_only_events(true, back - 1));
        assert!(health.lacks_only_events(true, back), "they did not come with it");
    }

    #[test]
    fn without_health_checks_missing_events_count_at_once() {
        let health = Health::new(&HealthConfig { interval: Duration::ZERO, ..HealthConfig::default() });
        assert!(health.lacks_only_events(true, 1) && !health.lacks_only_events(false, 1));
    }

    #[test]
    fn it_is_drained_as_long_as_anybody_wants_that() {
        let health = health(2, Duration::from_secs(1));
        assert!(health.set_draining(DrainedBy::Operator, true) && health.set_draining(DrainedBy::Discovery, true));
        assert!(health.set_draining(DrainedBy::Discovery, false), "the operator still wants it");
        assert_eq!(health.standing(), HealthState::Draining);
        assert!(health.set_draining(DrainedBy::Discovery, true) && health.set_draining(DrainedBy::Operator, false));
        assert!(!health.set_draining(DrainedBy::Discovery, false));
        assert_eq!(health.standing(), HealthState::Up);
    }
}
