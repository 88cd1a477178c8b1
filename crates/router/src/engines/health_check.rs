//! Health check of an engine, and what follows from its answer or silence; its signs of life, and whether it sleeps.
//!
//! SGLang answers at `/health` when its scheduler has put something out, and with 503 after 20 s without; an engine whose
//! process has much to do answers late. So a question stays open beyond its time-out, and as long as anything of the
//! engine moves (its streams, its events, its metrics, an answer at a path that costs nothing) it is busy, not dead.
//!
//! An engine that computes may answer no question for as long as that takes: SGLang's `/health` waits until the scheduler
//! has put something out. How long is long for one engine is learnt from what it did before.

use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::time::{Duration, Instant};

use crate::clock::millis;
use crate::config::{Handover, HealthConfig};
use crate::engines::json_fields::{self, pick};
use crate::engines::{Engine, Fault, Finding, Kind, status};

/// The path at which SGLang answers without its scheduler.
const SGLANG_ALIVE: &str = "/ping";

/// Time between two questions beside one that is not answered.
const PAUSE: Duration = Duration::from_secs(1);

/// Times in a row that a connection beside a question is refused before the engine counts as gone.
const REFUSALS: u32 = 2;

/// Sends a health check, and waits for the answer as long as the engine shows signs of life.
pub(crate) async fn ask(health: &HealthConfig, engine: &Engine) -> Finding {
    let (started, started_at) = (Instant::now(), millis());
    let mut answer = pin!(status(engine, &health.path));
    if let Ok(answer) = tokio::time::timeout(health.timeout, answer.as_mut()).await {
        return judge(health, engine, answer, started.elapsed());
    }
    let late = || {
        let waited = started.elapsed().as_secs_f64();
        let requests = match engine.counts.in_flight.load(std::sync::atomic::Ordering::Relaxed) {
            0 => "no requests of this router".to_owned(),
            1 => "1 request".to_owned(),
            many => format!("{many} requests"),
        };
        format!("GET {} is not answered within {waited:.1} s, with {requests} there", health.path)
    };
    *engine.why_not.lock() = Some(late());
    if !health.interval.is_zero() {
        engine.health.note_late();
    }
    let mut refusals = 0;
    loop {
        let beside = async {
            let asked = tokio::time::timeout(health.timeout, status(engine, alive_path(engine))).await;
            let paused = tokio::time::sleep(PAUSE.min(health.timeout));
            (asked, paused.await).0
        };
        tokio::select! {
            biased;
            answer = answer.as_mut() => return judge(health, engine, answer, started.elapsed()),
            asked = beside => match asked {
                Ok(Ok(status)) => {
                    refusals = 0;
                    if !is_from_gateway(status) {
                        engine.signs.note();
                    }
                }
                Ok(Err(fault @ (Fault::Connect(_) | Fault::Certificate(_)))) => {
                    refusals += 1;
                    if refusals >= REFUSALS {
                        return Finding::Dead(fault.to_string());
                    }
                }
                Ok(Err(_)) | Err(_) => {}
            },
        }
        *engine.why_not.lock() = Some(late());
        let (silence, last) = engine.stillness();
        let limit = engine.signs.limit_at_work(health.timeout);
        if engine.is_at_work() {
            if silence > limit {
                let silence = silence.as_secs_f64();
                return Finding::Dead(format!("{}, and nothing else has come for {silence:.1} s", late()));
            }
            if started.elapsed() > limit {
                return Finding::Busy(late());
            }
        } else {
            let idle = Duration::from_millis(millis().saturating_sub(last.max(started_at)));
            if idle > engine.signs.limit_idle(health.timeout) || started.elapsed() > limit {
                engine.signs.note_given_up(started.elapsed());
                return Finding::Dead(late());
            }
        }
    }
}

/// True for the statuses with which gateways tell of an engine that they cannot reach.
pub(crate) fn is_from_gateway(status: u16) -> bool {
    matches!(status, 502..=504)
}

/// The path of a question that engines answer whatever their schedulers do.
fn alive_path(engine: &Engine) -> &'static str {
    if engine.handover() == Some(Handover::Sglang) { SGLANG_ALIVE } else { Kind::VERSION_PATH }
}

/// Judges the answer to a health check, or its failure, by the time it took.
fn judge(health: &HealthConfig, engine: &Engine, answer: Result<u16, Fault>, took: Duration) -> Finding {
    let is_late = took > health.timeout;
    let is_moving = || engine.is_at_work() && engine.stillness().0 <= engine.signs.limit_at_work(health.timeout);
    match answer {
        // One that does not know the question is there.
        Ok(status) if status < 500 => {
            engine.signs.note_answer(took);
            Finding::Well
        }
        Ok(status) => {
            let why = format!("GET {} returns status {status}", health.path);
            if is_late && engine.is_at_work() {
                // SGLang says so when nothing was put out for a while: that is what a long prompt looks like.
                engine.signs.note();
                return Finding::Busy(format!("{why} after {:.1} s, while it works", took.as_secs_f64()));
            }
            Finding::Unwell(why)
        }
        Err(fault) if matches!(fault, Fault::ConnectTimeout) || is_late => {
            let why = format!("GET {}: {fault}", health.path);
            if is_moving() { Finding::Busy(why) } else { Finding::Unwell(why) }
        }
        Err(fault) => Finding::Unwell(fault.to_string()),
    }
}

/// The path at which vLLM tells whether it sleeps.
pub(crate) const SLEEP_PATH: &str = "/is_sleeping";

const UNKNOWN: u8 = 0;
const AWAKE: u8 = 1;
const ASLEEP: u8 = 2;

/// An engine's statements on whether it sleeps.
#[derive(Debug, Default)]
pub(crate) struct Sleep {
    by_route: AtomicU8,
    by_metrics: AtomicU8,
}

impl Sleep {
    /// True if the engine states that it sleeps.
    pub(crate) fn is_asleep(&self) -> bool {
        match self.by_route.load(Relaxed) {
            UNKNOWN => self.by_metrics.load(Relaxed) == ASLEEP,
            said => said == ASLEEP,
        }
    }

    /// The route or metric by which the engine states that it sleeps.
    pub(crate) fn source(&self) -> &'static str {
        if self.by_route.load(Relaxed) == ASLEEP { "GET /is_sleeping" } else { "vllm:engine_sleep_state" }
    }

    /// Notes what the engine said when it was asked; none if that says nothing. True if it is awake by that.
    pub(crate) fn note_route(&self, said: Option<bool>) -> bool {
        self.note(&self.by_route, said)
    }

    /// Notes what the engine's metrics say; none if they do not. True if it is awake by that.
    pub(crate) fn note_metrics(&self, said: Option<bool>) -> bool {
        self.note(&self.by_metrics, said)
    }

    /// Forgets what the engine said: who comes back from the dead is awake.
    pub(crate) fn forget(&self) {
        self.by_route.store(UNKNOWN, Relaxed);
        self.by_metrics.store(UNKNOWN, Relaxed);
    }

    fn note(&self, place: &AtomicU8, said: Option<bool>) -> bool {
        let was_asleep = self.is_asleep();
        let word = match said {
            None => UNKNOWN,
            Some(false) => AWAKE,
            Some(true) => ASLEEP,
        };
        place.store(word, Relaxed);
        was_asleep && !self.is_asleep()
    }
}

/// Reads an answer of [`SLEEP_PATH`]. None: it does not say.
pub(crate) fn read(status: u16, body: &[u8]) -> Option<bool> {
    if status != 200 {
        return None;
    }
    let [said] = pick(body, ["is_sleeping"])?;
    json_fields::read(said)
}

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
    fn the_route_counts_for_more_than_the_metrics() {
        let sleep = Sleep::default();
        assert!(!sleep.is_asleep() && !sleep.note_metrics(Some(true)) && sleep.is_asleep());
        assert_eq!(sleep.source(), "vllm:engine_sleep_state");
        assert!(sleep.note_route(Some(false)) && !sleep.is_asleep());
        assert!(!sleep.note_route(None) && sleep.is_asleep(), "one that does not say it any more");
        assert!(!sleep.note_route(Some(true)) && !sleep.note_metrics(Some(false)) && sleep.is_asleep());
        assert_eq!(sleep.source(), "GET /is_sleeping");
        sleep.forget();
        assert!(!sleep.is_asleep());
    }

    #[test]
    fn only_a_plain_word_counts() {
        assert_eq!(read(200, br#"{"is_sleeping": true}"#), Some(true));
        assert_eq!(read(200, br#"{"is_sleeping":false}"#), Some(false));
        for (status, body) in [
            (401, r#"{"is_sleeping": true}"#),
            (404, r#"{"detail": "Not Found"}"#),
            (500, ""),
            (200, "<html></html>"),
            (200, r#"{"is_sleeping": "true"}"#),
            (200, "true"),
        ] {
            assert_eq!(read(status, body.as_bytes()), None, "{status} {body}");
        }
    }

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
