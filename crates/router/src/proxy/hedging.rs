//! Hedging: a streamed request whose answer takes unusually long to begin is sent to a second engine too, and the first answer
//! wins. Off unless `hedge_after` is set.

use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hyper::Response;

use super::attempts::Attempts;
use super::job::Job;
use super::respond::FailedMark;
use crate::answers::body::Answer;
use crate::answers::refusal::Refusal;
use crate::config::Config;
use crate::counts::Counts;
use crate::engines::fleet::Fleet;

/// First tokens that must have been seen before anything is unusual.
const LEAST_SAMPLES: u64 = 100;
/// Requests at engines for each that may be at two of them: 5 %.
const EACH: usize = 20;

/// The time after which a request is sent to a second engine; none if that is off, or too little is known.
pub(super) fn wait(config: &Config, counts: &Counts) -> Option<Duration> {
    let quantile = config.hedge_after;
    (quantile > 0.0).then(|| counts.first_token.quantile(quantile, LEAST_SAMPLES)).flatten()
}

/// Count of a request at two engines, until it is dropped.
struct HedgeCount<'a>(&'a AtomicUsize);

impl<'a> HedgeCount<'a> {
    fn new(counts: &'a Counts, fleet: &Fleet) -> Option<Self> {
        let in_flight: usize = fleet.engines().iter().map(|engine| engine.counts.in_flight.load(Relaxed)).sum();
        Self::take(&counts.open_hedges, in_flight)
    }

    /// Counts one more hedge, unless the open ones exceed their share of the requests in flight.
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

/// Runs a job, and after a while a second time at another engine. The answer that comes first is the answer; the other
/// request is cancelled.
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
