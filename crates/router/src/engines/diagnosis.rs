//! Record of an engine's state for `/workers`, `/explain`, `/metrics`, the web page and the log, with the engine's
//! worst known fault: its name, its figures, and advice.

use std::time::{Duration, Instant};

use kvatlas_follow::Follower;
use serde_json::{Value, json};

use super::agreement::OtherCount;
use super::slowness::SpeedGap;
use super::trouble;
use crate::clock::millis;
use crate::engines::{CacheBelief, Condition, Engine, HealthState, Trouble};

/// Determines the present state of an engine for its record: the state of its event streams, and its worst known fault.
fn account(service: Option<&Follower>, engine: &Engine) -> EngineRecord {
    let (events, of_events) = service.map(|service| trouble::look(service, engine)).unzip();
    // An engine that is gone sends no events either: that is no trouble of its own.
    let of_events = of_events.flatten();
    let is_missing = of_events.as_ref().is_some_and(|it| matches!(it.ill, Trouble::NoEvents | Trouble::Overdue));
    let lacks_only_events = engine.health.lacks_only_events(is_missing, millis());
    let of_events = of_events.filter(|_| !is_missing || lacks_only_events);
    let others = [of_tokens(engine), of_cache(engine), slow(engine)].into_iter().flatten();
    let condition = of_requests(engine).into_iter().chain(of_events).chain(others);
    EngineRecord { events, condition: condition.min_by_key(|it| it.ill) }
}

/// Returns the worst fault seen in the engine's answers to requests; None if the engine answers well.
fn of_requests(engine: &Engine) -> Option<Condition> {
    let said = |ill, reason: String| Some(Condition::new(ill, reason));
    let standing = engine.health.standing();
    let recent = engine.recent.failing();
    let refused = engine.busy_answers.lock().look(&engine.counts, Instant::now());
    match standing {
        HealthState::Down => {
            let why = engine.why_not.lock().clone();
            return said(Trouble::Down, why.unwrap_or_else(|| "it does not answer".to_owned()));
        }
        HealthState::Asleep => {
            return said(Trouble::Asleep, format!("it says so itself: {}", engine.health.sleep.source()));
        }
        HealthState::Failing if recent.is_none() => {
            return said(Trouble::Failing, "several requests in a row failed".to_owned());
        }
        HealthState::Silent => return said(Trouble::Silent, "it has requests and sends nothing".to_owned()),
        _ => {}
    }
    // Requests that it does not take are no failures of it.
    if let Some((failed, all)) = recent.filter(|_| refused.is_none_or(|refused| !refused.is_all)) {
        return said(Trouble::Failing, format!("{failed} of the last {all} requests failed"));
    }
    if let Some(refused) = refused {
        let (requests, of) = (refused.requests, refused.of);
        let reason = format!("it did not take {requests} of its {of} requests of the last minute (status 429 or 503)");
        return said(Trouble::Busy, reason);
    }
    if standing == HealthState::Busy {
        let why = engine.why_not.lock().clone();
        return said(Trouble::Busy, why.unwrap_or_else(|| "it does not answer in time".to_owned()));
    }
    None
}

/// Returns the fault of an engine that tokenizes prompts differently from the router; None if the token counts agree.
fn of_tokens(engine: &Engine) -> Option<Condition> {
    let OtherCount { by_engine, by_router } = engine.token_agreement.other_count()?;
    let reason = format!(
        "it counted {by_engine} tokens in a prompt of {by_router}: its tokenizer or chat template is not the router's"
    );
    Some(Condition::new(Trouble::OtherTokens, reason))
}

/// Returns the fault of an engine that reports fewer cached blocks than its events announced; None if the numbers
/// agree.
fn of_cache(engine: &Engine) -> Option<Condition> {
    let beliefs = engine.beliefs.lock();
    let (had, expected, prompts) = beliefs.values().find_map(CacheBelief::denied)?;
    let reason = format!(
        "it had {had} of the {expected} blocks of the last {prompts} prompts that it should hold, and announced no removal"
    );
    Some(Condition::new(Trouble::Denying, reason))
}

/// Returns the fault of an engine that is slower than its peers; None for an engine of normal speed.
fn slow(engine: &Engine) -> Option<Condition> {
    let slowness = *engine.slowness.lock();
    // A prompt that is late proves nothing of its speed as long as the engine may be gone.
    let is_proved = |gap: &SpeedGap| gap.late.is_none_or(|late| engine.health.is_well_since(late.since));
    slowness.filter(is_proved).map(|slowness| Condition::new(Trouble::Slow, slowness.reason()))
}

/// Updates the record of an engine's state, and logs a change of the engine's worst known fault.
pub(crate) fn look(service: Option<&Follower>, engine: &Engine) {
    engine.recent.look(&engine.counts, Instant::now());
    // Several tasks look: what one has seen must not replace what another has seen after it.
    let mut kept = engine.record.lock();
    let mut now = account(service, engine);
    let before = kept.condition.as_ref().map(|it| (it.ill, it.since));
    match (before, &mut now.condition) {
        (Some((ill, since)), Some(condition)) if ill == condition.ill => condition.since = since,
        (before, Some(condition)) => say(engine, condition, before.map(|(ill, _)| ill)),
        (Some((ill, since)), None) => {
            let lasted = since.elapsed().unwrap_or(Duration::ZERO).as_secs_f64();
            let was = ill.name();
            tracing::info!(engine = &*engine.name, was, "the engine is well again: it was {was} for {lasted:.1} s");
        }
        (None, None) => {}
    }
    *kept = now;
}

/// Logs a new fault of an engine. `before`: the engine's worst fault until now.
fn say(engine: &Engine, Condition { ill, reason, .. }: &Condition, before: Option<Trouble>) {
    let (name, condition, state) = (&*engine.name, ill.name(), ill.phrase());
    let was = before.map(Trouble::name);
    match ill {
        // It works, or does what it was told.
        Trouble::Busy | Trouble::Asleep | Trouble::Overdue => {
            tracing::info!(engine = name, condition, was, "the engine is {state}: {reason}");
        }
        _ => tracing::warn!(engine = name, condition, was, "the engine is {state}: {reason}; {}", ill.advice()),
    }
}

/// State of an engine at its last examination. The field `health` of the engine, not this record, decides whether the
/// engine gets requests.
#[derive(Debug, Default, Clone)]
pub(crate) struct EngineRecord {
    /// State of the engine's event streams; None if this router follows no events.
    pub(crate) events: Option<EventsState>,
    /// Worst known fault of the engine; None if the engine works well.
    pub(crate) condition: Option<Condition>,
}

/// State of an engine's event streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EventsState {
    /// Name of the state of the engine's worst event stream, or of the stream's registration if there is no stream.
    pub(crate) name: &'static str,
    /// Longest lag of the engine's event streams: the time from an event's timestamp until the event is visible in the
    /// index. None if unknown.
    pub(crate) lag: Option<Duration>,
}

impl EngineRecord {
    /// Returns the engine's worst fault as JSON for answers of the router; null if the engine works well.
    pub(crate) fn condition_to_json(&self) -> Value {
        self.condition.as_ref().map_or(Value::Null, Condition::to_json)
    }

    /// Returns the state of the event streams as JSON for answers of the router; null if events are not followed.
    pub(crate) fn events_to_json(&self) -> Value {
        let Some(EventsState { name, lag }) = &self.events else { return Value::Null };
        json!({ "state": name, "lag_ms": lag.map(|lag| lag.as_micros() as f64 / 1e3) })
    }
}
