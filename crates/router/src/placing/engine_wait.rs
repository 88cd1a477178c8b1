//! Waiting of a request while no engine is up, and its refusal after the longest permitted wait.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use kvatlas_routing as core;
use tokio::time::timeout_at;

use super::Places;
use super::candidates::refused;
use super::no_engine::{EngineWait, FULL, TIMEOUT};
use crate::answers::refusal::Refusal;
use crate::engines::fleet::Fleet;
use crate::engines::{Engine, HealthState};
use crate::requests::facts::RequestFacts;
use crate::requests::task::Task;

/// Value of `Retry-After` in the refusal of a request for which no engine came up in time.
const AGAIN: Duration = Duration::from_secs(5);

/// Maximum number of engines named in a refusal.
const NAMED: usize = 4;

impl Places {
    /// True if the configuration permits requests to wait for an engine.
    pub(crate) fn may_wait(&self) -> bool {
        !self.no_engine.patience.is_zero()
    }

    /// Makes the refusal of a request if all engines that could serve it, except `excluded`, show no sign of life; None
    /// if an engine does, or if there are no such engines.
    pub(crate) fn all_down(&self, facts: &RequestFacts, task: Task, excluded: &[Arc<Engine>]) -> Option<Refusal> {
        let engines = self.fleet.engines();
        let is_reached = |engine: &Arc<Engine>| !excluded.iter().any(|other| Arc::ptr_eq(engine, other));
        let mut serving =
            engines.iter().filter(|engine| is_reached(engine) && could_take(engine, facts, task)).peekable();
        let is_any = serving.peek().is_some();
        let lives = |engine: &Arc<Engine>| {
            matches!(
                engine.health.standing(),
                HealthState::Up | HealthState::Busy | HealthState::Silent | HealthState::Failing
            )
        };
        (is_any && !serving.any(|engine| engine.can_do(task) && lives(engine)))
            .then(|| refused(core::Refusal::NoWorker))
    }

    /// Waits until an engine is available for a request. `place`: place in the queue, assigned by the first call;
    /// `tried`: engines that failed; `may_scout`: true if the request may be tried at an engine that is down or
    /// failing, to see whether it works again; `why`: the refusal if the request does not wait.
    ///
    /// # Errors
    /// The refusal, if the request may not wait, or has waited for the longest permitted time.
    pub(crate) async fn wait_for_engine<'a>(
        &'a self,
        place: &mut Option<EngineWait<'a>>,
        facts: &RequestFacts,
        task: Task,
        tried: &[Arc<Engine>],
        may_scout: bool,
        why: Refusal,
    ) -> Result<(), Refusal> {
        let (room, fleet) = (&self.no_engine, &*self.fleet);
        let mut has_others = false;
        if place.is_none() {
            // They have said when to come back.
            if availability(fleet, facts, task, &[]) == Availability::Paused {
                return Err(why);
            }
            let is_outage = tried.is_empty() || availability(fleet, facts, task, tried) != Availability::Up;
            if is_outage {
                room.outage.begin(room.patience, || states(fleet, facts, task));
            }
            if room.patience.is_zero() {
                room.outage.refuse();
                return Err(if all_asleep(fleet, facts, task) { refusal(fleet, facts, task, "") } else { why });
            }
            *place = room.enter();
            has_others = !is_outage;
        }
        let Some(place) = place.as_mut() else {
            room.ended[FULL].fetch_add(1, Relaxed);
            room.outage.refuse();
            let more = format!("; {} requests wait for one already, and no more may (router.queue)", room.most);
            return Err(refusal(fleet, facts, task, &more));
        };
        let until = place.started + room.patience;
        place.stand_in_line();
        if has_others {
            // It had no retries left for them.
            room.call();
        }
        loop {
            let is_over = until <= Instant::now() || timeout_at(until.into(), place.turn.notified()).await.is_err();
            if is_over {
                place.outcome = TIMEOUT;
                room.outage.refuse();
                let more = format!("; the request waited for {:?} (router.wait_for_engine)", room.patience);
                return Err(refusal(fleet, facts, task, &more));
            }
            match availability(fleet, facts, task, &[]) {
                Availability::Up => break,
                Availability::Doubtful if may_scout && room.may_scout(place.number) => break,
                Availability::Doubtful if !may_scout && self.all_down(facts, task, tried).is_none() => break,
                _ => place.pass_on(),
            }
        }
        place.try_one();
        Ok(())
    }
}

/// Makes the refusal of a request for which no engine is available, with the state of each engine. `more`: text
/// appended to the message.
fn refusal(fleet: &Fleet, facts: &RequestFacts, task: Task, more: &str) -> Refusal {
    let (code, message) = match states(fleet, facts, task) {
        None => ("no_engines", format!("the router has no engines{more}")),
        Some(states) if all_asleep(fleet, facts, task) => {
            ("engines_asleep", format!("all engines that could take the request are asleep: {states}{more}"))
        }
        Some(states) => ("no_engine_available", format!("no engine is up: {states}{more}")),
    };
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, code, message).again_after(AGAIN)
}

/// Describes the states of the engines that could serve a request, as text; None if there are no such engines.
fn states(fleet: &Fleet, facts: &RequestFacts, task: Task) -> Option<String> {
    let engines = fleet.engines();
    let serving: Vec<&Arc<Engine>> = engines.iter().filter(|engine| could_take(engine, facts, task)).collect();
    let words = |engine: &&Arc<Engine>| {
        let (name, standing) = (&engine.name, engine.health.standing());
        match engine.why_not.lock().as_deref() {
            Some(why) => format!("{name} is {} ({why})", standing.name()),
            None if standing == HealthState::Up && !engine.can_do(task) => {
                format!("{name} has not said yet how it hands blocks over")
            }
            None if standing == HealthState::Up => format!("{name} could not be reached"),
            None => format!("{name} is {}", standing.name()),
        }
    };
    let mut said = serving.iter().take(NAMED).map(words).collect::<Vec<_>>().join(", ");
    if serving.len() > NAMED {
        said += &format!(" and {} more", serving.len() - NAMED);
    }
    (!serving.is_empty()).then_some(said)
}

fn all_asleep(fleet: &Fleet, facts: &RequestFacts, task: Task) -> bool {
    let engines = fleet.engines();
    let mut serving = engines.iter().filter(|engine| could_take(engine, facts, task)).peekable();
    serving.peek().is_some() && serving.all(|engine| engine.health.standing() == HealthState::Asleep)
}

/// Best availability among the engines that could serve a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Availability {
    /// Some of the engines that could serve the request are up.
    Up,
    /// All engines are down or failing, but one of them may work again.
    Doubtful,
    /// All of the engines that work have requested a pause.
    Paused,
    /// None of the engines accepts requests.
    None,
}

/// Returns the best availability among the engines that could serve a request, except those in `tried`.
fn availability(fleet: &Fleet, facts: &RequestFacts, task: Task, tried: &[Arc<Engine>]) -> Availability {
    let engines = fleet.engines();
    let is_other = |engine: &Arc<Engine>| !tried.iter().any(|other| Arc::ptr_eq(engine, other));
    let serving = engines.iter().filter(|engine| is_other(engine) && could_take(engine, facts, task));
    serving.map(|engine| availability_of(engine, task)).min_by_key(|it| *it as u8).unwrap_or(Availability::None)
}

fn availability_of(engine: &Engine, task: Task) -> Availability {
    // One whose kind is not known cannot be part of a pair yet.
    if !engine.can_do(task) {
        return Availability::None;
    }
    match engine.health.standing() {
        HealthState::Up | HealthState::Busy | HealthState::Silent => Availability::Up,
        HealthState::Down | HealthState::Failing => Availability::Doubtful,
        HealthState::Paused => Availability::Paused,
        HealthState::Asleep | HealthState::Draining => Availability::None,
    }
}

fn could_take(engine: &Engine, facts: &RequestFacts, task: Task) -> bool {
    engine.is_for(task) && engine.models.load().may_serve(facts.body.model.as_deref())
}
