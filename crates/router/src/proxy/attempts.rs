//! Attempts to serve a request: their number, the blame of engines for failed attempts, and hedging, which sends a
//! streamed request to a second engine if the answer takes unusually long to begin.
//!
//! An engine that closes a connection without an answer may have executed the request, and may have crashed because of
//! it. A request with side effects is therefore not retried once it has been sent, and a request that only generates
//! text is sent to one more engine. The second attempt shows the cause: if it succeeds, the first engine has failed; if
//! not, the request is the likelier cause.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hyper::Response;
use hyper::header::HeaderValue;

use super::job::Job;
use super::respond::FailedMark;
use crate::answers::Answer;
use crate::answers::refusal::Refusal;
use crate::config::Config;
use crate::counts::Counts;
use crate::engines::fleet::Fleet;
use crate::engines::{Engine, Fault};
use crate::model_counts::{GIVEN_UP, ModelCounts};

/// Maximum number of engines tried for a request because the engines tried before do not have its model.
const MOST_WITHOUT: usize = 16;

/// Maximum number of times that a request is sent if each time the engine may have executed it without an answer.
const SENDS: u32 = 2;

/// Reason why a request is not retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastAttempt {
    /// The engine may have executed the request, and a retry could execute it twice.
    NotRepeatable,
    /// The request was sent twice without an answer.
    SentTwice,
    /// The configured number of retries has been reached.
    NoRetriesLeft,
    /// No other engine is available for the request.
    NoOtherEngine,
}

impl LastAttempt {
    /// Counts and logs a request that got no answer from any engine. `id`: the request's id; `why`: the refusal for the
    /// client.
    pub(crate) fn count(self, counts: &Counts, model: &ModelCounts, id: Option<&HeaderValue>, why: &Refusal) {
        model.given_up[self as usize].fetch_add(1, Relaxed);
        let Some(left_out) = counts.given_up_lines[self as usize].take() else { return };
        let id = id.and_then(|id| id.to_str().ok());
        let reason = GIVEN_UP[self as usize];
        tracing::warn!(
            request_id = id,
            reason,
            left_out,
            "no engine answered a request, and it is not sent again: {}",
            why.message
        );
    }
}

/// State of the router's attempts to serve one request at engines.
pub(crate) struct Attempts {
    repeatable: bool,
    /// Number of retries of the request that are still permitted.
    left: u32,
    /// Number of times that the request was sent to an engine and not answered.
    lost: u32,
    /// Maximum number of retries of the request.
    retries: u32,
    /// Engines at which the request failed.
    tried: Vec<Arc<Engine>>,
    /// Engines in `tried` to which the router could not connect.
    unreachable: Vec<Arc<Engine>>,
    /// True before the first attempt, and after an attempt in which nothing was sent to the engine.
    is_unsent: bool,
    /// True if these attempts belong to a hedge (a second attempt at another engine while the first has not answered).
    is_beside: bool,
    /// Engines that are blamed for their failed attempts if another engine answers the request.
    suspects: Vec<Arc<Engine>>,
    /// Engine that closed a reused connection in the last attempt, and that may nevertheless be working; None if no
    /// engine did.
    stale: Option<Arc<Engine>>,
}

impl Attempts {
    /// Makes the state before the first attempt. `repeatable`: true if the request may be executed twice; `retries`:
    /// maximum number of retries.
    pub(crate) fn new(repeatable: bool, retries: u32) -> Self {
        Self {
            repeatable,
            left: retries,
            lost: 0,
            retries,
            tried: Vec::new(),
            unreachable: Vec::new(),
            is_unsent: true,
            is_beside: false,
            suspects: Vec::new(),
            stale: None,
        }
    }

    /// Makes the state of a hedge: one attempt at an engine other than `engine`, which is still processing the request.
    pub(crate) fn beside(engine: Arc<Engine>) -> Self {
        Self { tried: vec![engine], is_beside: true, ..Self::new(true, 0) }
    }

    /// Returns the engines at which the request failed, which are not tried again.
    pub(crate) fn tried(&self) -> &[Arc<Engine>] {
        &self.tried
    }

    /// True if the request may be retried after the fault `fault`, preferably at another engine.
    pub(crate) fn may_go_on_after(&self, fault: &Fault) -> bool {
        self.why_not(fault, self.lost + u32::from(fault.may_have_been_sent())).is_none()
    }

    /// True if the request may be tried at one more engine after an engine that does not have its model.
    pub(crate) fn may_look_further(&self) -> bool {
        self.tried.len() < MOST_WITHOUT
    }

    /// True if the next attempt needs a new connection, as an engine may not receive the data sent on a reused
    /// connection.
    pub(crate) fn needs_new_connection(&self) -> bool {
        !self.repeatable || self.lost > 0
    }

    /// Records that the request failed at `engine`, perhaps through the fault of `suspect`, which is the same engine or
    /// its prefill engine. Returns the reason why the request is not retried; None if it may be retried.
    pub(crate) fn note_failure(
        &mut self,
        engine: &Arc<Engine>,
        suspect: &Arc<Engine>,
        fault: &Fault,
    ) -> Option<LastAttempt> {
        self.lose(suspect, fault);
        let why_not = self.why_not(fault, self.lost);
        self.stale = (*fault == Fault::Stale).then(|| engine.clone());
        // One that is sent again because a connection was old is no retry.
        // Nor does it cost one to learn that an engine has no such model.
        let is_retry = self.stale.is_none() && *fault != Fault::NoModel;
        self.left = self.left.saturating_sub(u32::from(is_retry));
        self.tried.push(engine.clone());
        self.is_unsent = fault.is_of_connecting();
        if self.is_unsent {
            self.unreachable.push(engine.clone());
        }
        why_not
    }

    /// Records that the request failed at an engine. The engine is blamed if another engine answers the request.
    pub(crate) fn lose(&mut self, engine: &Arc<Engine>, fault: &Fault) {
        self.lost += u32::from(fault.may_have_been_sent());
        let is_suspect = match fault {
            Fault::Error(_) => fault.is_unclear(),
            _ => fault.may_have_been_sent() && *fault != Fault::Stale,
        };
        if is_suspect {
            self.suspects.push(engine.clone());
        }
    }

    /// True if the request must not be retried.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost >= SENDS
    }

    /// True if the request may wait for an engine to come up: it has not been tried, or the router could not connect to
    /// the last engine tried.
    pub(crate) fn may_wait(&self) -> bool {
        self.is_unsent && !self.is_beside
    }

    /// Resets the state so that engines to which the router could not connect are tried again.
    pub(crate) fn start_over(&mut self) {
        let unreachable = std::mem::take(&mut self.unreachable);
        self.tried.retain(|engine| !unreachable.iter().any(|other| Arc::ptr_eq(engine, other)));
        self.left = self.retries;
    }

    /// Permits one more attempt at the engine that closed a reused connection, in case no other engine is available.
    /// Returns false if no engine closed a reused connection.
    pub(crate) fn go_back(&mut self) -> bool {
        let Some(stale) = self.stale.take() else { return false };
        self.tried.retain(|engine| !Arc::ptr_eq(engine, &stale));
        true
    }

    /// Records that an engine answered, so that the suspected earlier engines are blamed for their failed attempts.
    pub(crate) fn answered(&mut self) {
        self.suspects.drain(..).for_each(|engine| engine.blame());
    }

    fn why_not(&self, fault: &Fault, lost: u32) -> Option<LastAttempt> {
        match () {
            () if *fault == Fault::NoModel => None,
            () if !self.repeatable && !fault.is_of_connecting() => Some(LastAttempt::NotRepeatable),
            () if lost >= SENDS => Some(LastAttempt::SentTwice),
            () if self.left == 0 && *fault != Fault::Stale => Some(LastAttempt::NoRetriesLeft),
            () => None,
        }
    }
}

/// Minimum number of observed times to the first token before requests are hedged.
const LEAST_SAMPLES: u64 = 100;
/// Minimum number of requests in flight for each open hedge (second attempt at another engine), so that at most 5 % of
/// the requests are hedged.
const EACH: usize = 20;

/// Returns the time after which a request is hedged (sent to a second engine too); None if hedging is off, or too few
/// times to the first token were observed.
pub(super) fn wait(config: &Config, counts: &Counts) -> Option<Duration> {
    let quantile = config.hedge_after;
    (quantile > 0.0).then(|| counts.first_token.quantile(quantile, LEAST_SAMPLES)).flatten()
}

/// Guard of an open hedge (a second attempt at another engine), which is counted as open until the guard is dropped.
struct HedgeCount<'a>(&'a AtomicUsize);

impl<'a> HedgeCount<'a> {
    fn new(counts: &'a Counts, fleet: &Fleet) -> Option<Self> {
        let in_flight: usize = fleet.engines().iter().map(|engine| engine.counts.in_flight.load(Relaxed)).sum();
        Self::take(&counts.open_hedges, in_flight)
    }

    /// Counts one more open hedge (second attempt at another engine); None if the hedges would exceed the permitted
    /// share of the requests in flight.
    fn take(open: &'a AtomicUsize, in_flight: usize) -> Option<Self> {
        let one_more =
            |open: usize| (open.saturating_mul(EACH) < in_flight.saturating_sub(open)).then(|| open.saturating_add(1));
        // A value that is made beforehand would be dropped where there is no place, and give back what was never taken.
        open.fetch_update(Relaxed, Relaxed, one_more).is_ok().then(|| Self(open))
    }
}

impl Drop for HedgeCount<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Serves a request at an engine, and after the time `after` at a second engine too. The first answer is returned; the
/// other attempt is cancelled.
pub(super) async fn run(job: &Job<'_>, attempts: Attempts, after: Duration) -> Result<Response<Answer>, Refusal> {
    let began = OnceLock::new();
    let mut first = std::pin::pin!(job.run(attempts, &began));
    if let Ok(answered) = tokio::time::timeout(after, first.as_mut()).await {
        return answered;
    }
    // One that still waits in the router is not late because of an engine.
    let Some(engine) = began.get() else { return first.await };
    let count = |outcome: usize| job.proxy.counts.hedges[outcome].fetch_add(1, Relaxed);
    let Some(_second) = HedgeCount::new(&job.proxy.counts, &job.proxy.fleet) else {
        count(2);
        return first.await;
    };
    let other = OnceLock::new();
    let mut second = std::pin::pin!(job.run(Attempts::beside(engine.clone()), &other));
    let is_failed = |answer: &Response<Answer>| answer.extensions().get::<FailedMark>().is_some();
    let failed = tokio::select! {
        answered = first.as_mut() => match answered {
            Ok(answer) if !is_failed(&answer) => {
                count(1);
                return Ok(answer);
            }
            failed => failed,
        },
        answered = second.as_mut() => match answered {
            Ok(answer) if !answer.status().is_server_error() && !is_failed(&answer) => {
                count(0);
                return Ok(answer);
            }
            _ => {
                count(1);
                return first.await;
            }
        },
    };
    match second.await {
        Ok(answer) if !is_failed(&answer) => {
            count(0);
            Ok(answer)
        }
        _ => {
            count(1);
            failed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, EngineConfig};

    fn engine() -> Arc<Engine> {
        Arc::new(Engine::new(EngineConfig::at("http://a:1"), &Config::default(), 1, None).expect("one"))
    }

    #[test]
    fn how_often_it_is_sent() {
        let (engine, refused) = (engine(), Fault::Connect(String::new()));
        let mut attempts = Attempts::new(true, 2);
        assert_eq!(attempts.note_failure(&engine, &engine, &refused), None);
        assert_eq!(attempts.note_failure(&engine, &engine, &Fault::Closed), None);
        assert!(attempts.needs_new_connection() && !attempts.is_lost());
        assert_eq!(attempts.note_failure(&engine, &engine, &Fault::FirstByte), Some(LastAttempt::SentTwice));
        let mut attempts = Attempts::new(true, 2);
        for _ in 0..2 {
            assert_eq!(
                attempts.note_failure(&engine, &engine, &Fault::Error(500)),
                None,
                "it is known what came of it"
            );
        }
        assert_eq!(attempts.note_failure(&engine, &engine, &Fault::Error(500)), Some(LastAttempt::NoRetriesLeft));
        let mut attempts = Attempts::new(true, 0);
        assert_eq!(attempts.note_failure(&engine, &engine, &Fault::Stale), None, "that was the connection's age");
        assert!(attempts.go_back() && attempts.tried().is_empty() && !attempts.go_back());
        assert_eq!(attempts.note_failure(&engine, &engine, &Fault::Stale), Some(LastAttempt::SentTwice));
        let mut attempts = Attempts::new(true, 0);
        assert_eq!(attempts.note_failure(&engine, &engine, &refused), Some(LastAttempt::NoRetriesLeft));
    }

    #[test]
    fn what_could_not_be_reached_is_tried_again() {
        let (one, other, refused) = (engine(), engine(), Fault::Connect(String::new()));
        let mut attempts = Attempts::new(true, 1);
        assert!(attempts.may_wait());
        assert_eq!(attempts.note_failure(&one, &one, &Fault::Closed), None);
        assert!(!attempts.may_wait());
        let why = attempts.note_failure(&other, &other, &refused);
        assert!(why == Some(LastAttempt::NoRetriesLeft) && attempts.may_wait());
        attempts.start_over();
        assert!(attempts.tried().len() == 1 && Arc::ptr_eq(&attempts.tried()[0], &one));
        assert!(!Attempts::beside(one).may_wait(), "the other engine works on it");
    }

    #[test]
    fn what_is_not_repeatable_is_sent_once() {
        let engine = engine();
        let mut attempts = Attempts::new(false, 2);
        assert!(attempts.needs_new_connection() && !attempts.may_go_on_after(&Fault::Busy(503)));
        assert_eq!(attempts.note_failure(&engine, &engine, &Fault::Connect(String::new())), None);
        assert_eq!(attempts.note_failure(&engine, &engine, &Fault::Closed), Some(LastAttempt::NotRepeatable));
    }

    #[test]
    fn five_in_a_hundred_and_again_when_they_are_over() {
        let open = AtomicUsize::new(0);
        for round in 0..3 {
            let mut taken = Vec::new();
            for _ in 0..100 {
                let in_flight = 100 + taken.len();
                taken.extend(HedgeCount::take(&open, in_flight));
            }
            assert_eq!((taken.len(), open.load(Relaxed)), (5, 5), "round {round}");
            drop(taken);
            assert_eq!(open.load(Relaxed), 0, "what was refused gives nothing back");
        }
        assert!(HedgeCount::take(&open, 1).is_some(), "one request alone may be at two engines");
        assert!(HedgeCount::take(&open, 0).is_none());
    }
}
