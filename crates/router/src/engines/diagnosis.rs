//! The worst known condition of an engine: a word, figures, and advice.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use kvatlas_follow::Follower;
use kvatlas_follow::state::Stream;

use crate::engines::{CacheBelief, Condition, Engine, HealthState, Trouble};

/// The worst thing that is known of an engine now; none if all is well.
pub(crate) fn condition(service: Option<&Follower>, engine: &Engine) -> Option<Condition> {
    let said = |ill, reason: String| Some(Condition { ill, reason });
    let recent = engine.recent.failing();
    match engine.health.standing() {
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
    if let Some((failed, all)) = recent {
        return said(Trouble::Failing, format!("{failed} of the last {all} requests failed"));
    }
    let of_events = of_events(service, engine);
    let of_events = match of_events {
        Some(Condition { ill, .. }) if ill < Trouble::Denying => of_events,
        _ => of_cache(engine).or(of_events),
    };
    if engine.health.standing() == HealthState::Busy && of_events.as_ref().is_none_or(|it| it.ill > Trouble::Busy) {
        let why = engine.why_not.lock().clone();
        return said(Trouble::Busy, why.unwrap_or_else(|| "it does not answer in time".to_owned()));
    }
    of_events
}

/// Returns the trouble with an engine's cache, by its own reports.
fn of_cache(engine: &Engine) -> Option<Condition> {
    let beliefs = engine.beliefs.lock();
    let (had, expected, prompts) = beliefs.values().find_map(CacheBelief::denied)?;
    let reason = format!(
        "it had {had} of the {expected} blocks of the last {prompts} prompts that it should hold, and announced no removal"
    );
    Some(Condition { ill: Trouble::Denying, reason })
}

/// Returns the worst thing that is known of an engine's events.
fn of_events(service: Option<&Follower>, engine: &Engine) -> Option<Condition> {
    let service = service?;
    let keyspaces = service.fleet().keyspaces();
    let keyspace = keyspaces.iter().find(|keyspace| !keyspace.streams_of(&engine.name).is_empty())?;
    let (mut refused, mut wrong_size, mut lost, mut is_partial) = (0, 0, 0, false);
    let (mut other_size, mut is_other_size, mut other_topics) = (None, false, 0);
    for (_, stream) in keyspace.streams_of(&engine.name) {
        let status = &stream.status;
        let (sized, partial) = (status.refused_for_their_size(), status.refused_as_partial());
        // Blocks that are not full cannot be used, and need not be.
        let not_needed = if status.has_other_size() { 0 } else { partial };
        refused += status.refused().iter().sum::<u64>() - not_needed;
        wrong_size += sized + partial - not_needed;
        other_size = other_size.or(status.other_size());
        is_other_size |= status.has_other_size();
        let others = status.counters.other_topic_batches.load(Relaxed);
        if others > 0 && status.counters.batches.load(Relaxed) == 0 && !shares_address(service, &stream) {
            other_topics += others;
        }
        lost += status.counters.lost_batches.load(Relaxed);
        is_partial |= status.partial.load(Relaxed);
    }
    let said = |ill, reason: String| Some(Condition { ill, reason });
    if other_topics > 0 {
        return said(
            Trouble::Misconfigured,
            format!("{other_topics} batches have another topic than the one that is set"),
        );
    }
    if refused > 0 && engine.refused.lock().is_new(refused) {
        let size = keyspace.block_size;
        let its = other_size.map_or(0, |(its, _)| its);
        if is_other_size {
            let reason = format!(
                "{wrong_size} events have blocks of another size than {size}, which is set or announced: most have {its}"
            );
            return said(Trouble::Misconfigured, reason);
        }
        if wrong_size > 0 {
            let reason =
                format!("{wrong_size} events have blocks of another size, {its}, among those of {size} tokens");
            return said(Trouble::Refusing, reason);
        }
        return said(Trouble::Refusing, format!("{refused} of its events could not be used"));
    }
    let reason = if lost > 0 { format!("{lost} batches of events are lost") } else { "events were missed".to_owned() };
    is_partial.then_some(Condition { ill: Trouble::Partial, reason })
}

/// True if another stream has the same address and a topic of its own: then what this one leaves out is that one's.
fn shares_address(service: &Follower, stream: &Stream) -> bool {
    let its = &stream.registration;
    let workers = service.fleet().workers();
    let mut others = workers.iter().flat_map(|worker| &worker.streams).map(|(_, other)| &other.registration);
    others.any(|other| other.endpoint == its.endpoint && other.topic != its.topic)
}

/// Looks how an engine is, and says it when that changes.
pub(crate) fn look(service: Option<&Follower>, engine: &Engine) {
    engine.recent.look(&engine.counts, Instant::now());
    let now = condition(service, engine);
    let mut kept = engine.condition.lock();
    let (before, ill) = (kept.as_ref().map(|it| it.ill), now.as_ref().map(|it| it.ill));
    if before != ill {
        match &now {
            // Said by whoever asked it.
            Some(Condition { ill: Trouble::Down | Trouble::Silent, .. }) => {}
            // It works, or does what it was told.
            Some(Condition { ill: ill @ (Trouble::Busy | Trouble::Asleep), reason }) => {
                tracing::info!(
                    engine = &*engine.name,
                    condition = ill.name(),
                    "the engine is {}: {reason}",
                    ill.name()
                );
            }
            Some(Condition { ill, reason }) => tracing::warn!(
                engine = &*engine.name,
                condition = ill.name(),
                "the engine is {}: {reason}; {}",
                ill.name(),
                ill.advice()
            ),
            None => tracing::info!(engine = &*engine.name, "the engine is well again"),
        }
    }
    *kept = now;
}
