//! Health checks of an engine, with the evidence that an engine without an answer is alive, and its state of sleep.
//!
//! SGLang answers at `/health` when its scheduler has produced output, and with 503 after 20 s without output; a
//! process under load answers late. A health check therefore stays open beyond its time limit. While anything arrives
//! from the engine (streams, events, metrics, or an answer at a path that needs no computation), the engine is
//! considered busy, not dead.
//!
//! An engine may send nothing at all while it computes: SGLang's `/health` waits until the scheduler has produced
//! output. The longest silence to expect is learnt for each engine from its earlier silences.

use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::time::{Duration, Instant};

use crate::clock::millis;
use crate::config::{Handover, HealthConfig};
use crate::engines::json_fields::{self, pick};
use crate::engines::{Engine, Fault, Finding, Kind, status};

/// Path at which SGLang answers even if its scheduler is blocked.
const SGLANG_ALIVE: &str = "/ping";

/// Pause between two probes of an engine that has not answered its health check. A probe is a request that needs no
/// computation.
const PAUSE: Duration = Duration::from_secs(1);

/// Number of successive probes with a refused connection after which the engine is considered dead.
const REFUSALS: u32 = 2;

/// Makes a health check of an engine and returns the outcome. Waits for the answer beyond the time limit while other
/// data arrive from the engine.
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

/// True for the HTTP statuses by which a gateway reports that it cannot reach the engine.
pub(crate) fn is_from_gateway(status: u16) -> bool {
    matches!(status, 502..=504)
}

/// Returns the path at which the engine answers independently of its scheduler.
fn alive_path(engine: &Engine) -> &'static str {
    if engine.handover() == Some(Handover::Sglang) { SGLANG_ALIVE } else { Kind::VERSION_PATH }
}

/// Derives the outcome of a health check from the engine's answer or failure. `took`: time from the check to the
/// answer.
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

/// Path at which vLLM reports whether it is asleep.
pub(crate) const SLEEP_PATH: &str = "/is_sleeping";

const UNKNOWN: u8 = 0;
const AWAKE: u8 = 1;
const ASLEEP: u8 = 2;

/// State of an engine's sleep mode, as reported by the engine's routes and metrics.
#[derive(Debug, Default)]
pub(crate) struct Sleep {
    by_route: AtomicU8,
    by_metrics: AtomicU8,
}

impl Sleep {
    /// True if the engine reports that it is asleep.
    pub(crate) fn is_asleep(&self) -> bool {
        match self.by_route.load(Relaxed) {
            UNKNOWN => self.by_metrics.load(Relaxed) == ASLEEP,
            said => said == ASLEEP,
        }
    }

    /// Returns the name of the route or metric by which the engine reports that it is asleep.
    pub(crate) fn source(&self) -> &'static str {
        if self.by_route.load(Relaxed) == ASLEEP { "GET /is_sleeping" } else { "vllm:engine_sleep_state" }
    }

    /// Records the engine's answer at [`SLEEP_PATH`] (true: asleep); None for an answer that is no clear yes or no.
    /// Returns true if the engine has just woken up.
    pub(crate) fn note_route(&self, said: Option<bool>) -> bool {
        self.note(&self.by_route, said)
    }

    /// Records the sleep state that the engine's metrics report (true: asleep); None if the metrics do not report it.
    /// Returns true if the engine has just woken up.
    pub(crate) fn note_metrics(&self, said: Option<bool>) -> bool {
        self.note(&self.by_metrics, said)
    }

    /// Resets the sleep state to awake, as an engine that was down is awake when it comes back.
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

/// Parses an engine's answer at [`SLEEP_PATH`]: true if the engine is asleep; None if the answer is no clear yes or no.
pub(crate) fn read(status: u16, body: &[u8]) -> Option<bool> {
    if status != 200 {
        return None;
    }
    let [said] = pick(body, ["is_sleeping"])?;
    json_fields::read(said)
}

/// Minimum time without data after which an engine with requests is considered dead, as a multiple of a health check's
/// time limit.
const TIMEOUTS: u32 = 20;
/// Minimum time without data after which an engine with requests is considered dead.
const LEAST: Duration = Duration::from_secs(10);

/// Factor for the longest time without data from an engine after which the engine sent data again. An engine is
/// considered dead only if its present time without data exceeds that time by this factor.
const TIMES: u32 = 2;

/// Record of an engine's signs of life (received data) other than the bytes of its answers, and of the lengths of its
/// silences. Times are in milliseconds of the router's clock.
#[derive(Debug, Default)]
pub(crate) struct Signs {
    /// Time at which data other than the bytes of answers were last received from the engine.
    last: AtomicU64,
    /// Number of requests, running and waiting, that the engine last reported to have.
    reported: AtomicU64,
    /// Time at which any data, bytes of answers included, had last been received when the record was last updated.
    seen: AtomicU64,
    /// Time from the last data received from the engine to the last update of the record, in milliseconds.
    silence: AtomicU64,
    /// Longest time, in milliseconds, for which the engine had requests and sent no data before it sent data again.
    longest: AtomicU64,
    /// Longest time to the answer of a successful health check, in milliseconds.
    slowest: AtomicU64,
    /// Longest time after which an unanswered health check was abandoned since the last successful one, in
    /// milliseconds.
    given_up: AtomicU64,
}

impl Signs {
    /// Records that data were received from the engine now.
    pub(crate) fn note(&self) {
        self.note_at(millis());
    }

    /// Records that data were received from the engine `ago` before the present time.
    pub(crate) fn note_ago(&self, ago: Duration) {
        self.note_at(millis().saturating_sub(ago.as_millis() as u64));
    }

    fn note_at(&self, at: u64) {
        self.last.fetch_max(at, Relaxed);
    }

    /// Returns the time at which data other than the bytes of answers were last received, in milliseconds of the
    /// router's clock.
    pub(crate) fn last(&self) -> u64 {
        self.last.load(Relaxed)
    }

    /// Records the number of requests that the engine's metrics report.
    pub(crate) fn note_reported(&self, requests: f64) {
        self.reported.store(requests as u64, Relaxed);
    }

    /// Returns the number of requests, running and waiting, that the engine last reported to have.
    pub(crate) fn reported(&self) -> u64 {
        self.reported.load(Relaxed)
    }

    /// Records a successful health check. `took`: time from the check to its answer.
    pub(crate) fn note_answer(&self, took: Duration) {
        self.note();
        self.slowest.fetch_max(took.as_millis() as u64, Relaxed);
        self.given_up.store(0, Relaxed);
    }

    /// Records that an unanswered health check was abandoned after the time `after`. The next check is allowed more
    /// time, as the answer may take longer.
    pub(crate) fn note_given_up(&self, after: Duration) {
        self.given_up.fetch_max(after.as_millis() as u64, Relaxed);
    }

    /// Updates the longest silence of the engine. `last`: time at which any data were last received; `silence`: time
    /// since then if the engine has requests, else 0.
    pub(crate) fn look(&self, last: u64, silence: Duration) {
        let before = self.silence.swap(silence.as_millis() as u64, Relaxed);
        if self.seen.swap(last, Relaxed) < last {
            self.longest.fetch_max(before, Relaxed);
        }
    }

    /// Returns the time without data after which an engine with requests is considered dead. `timeout`: time limit of a
    /// health check.
    pub(crate) fn limit_at_work(&self, timeout: Duration) -> Duration {
        let longest = Duration::from_millis(self.longest.load(Relaxed).max(self.slowest.load(Relaxed)));
        (timeout * TIMEOUTS).max(longest * TIMES).max(LEAST)
    }

    /// Returns the time without data after which an engine without requests is considered dead. `timeout`: time limit
    /// of a health check.
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
