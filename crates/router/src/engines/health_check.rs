//! Health check of an engine, and what follows from its answer or silence.
//!
//! SGLang answers at `/health` when its scheduler has put something out, and with 503 after 20 s without; an engine whose
//! process has much to do answers late. So a question stays open beyond its time-out, and as long as anything of the
//! engine moves (its streams, its events, its metrics, an answer at a path that costs nothing) it is busy, not dead.

use std::pin::pin;
use std::time::{Duration, Instant};

use crate::clock::millis;
use crate::config::{Handover, HealthConfig};
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
