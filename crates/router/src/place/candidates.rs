//! Finds the engines that may take a request.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use kvatlas_routing as core;

use crate::config::Role;
use crate::engine::{Engine, HealthState};
use crate::fleet::Fleet;
use crate::refusal::Refusal;
use crate::request_facts::RequestFacts;

/// The ranks of engines that may take a request, at least one.
pub(super) fn candidates(
    fleet: &Fleet,
    known: &RequestFacts,
    role: Role,
    tried: &[Arc<Engine>],
) -> Result<Vec<core::WorkerId>, Refusal> {
    let engines = fleet.engines();
    let model = known.model.as_deref();
    let may = |engine: &Engine| known.only.as_ref().is_none_or(|only| *only == engine.name);
    let serves = |engine: &Engine| {
        may(engine) && engine.does(role) && model.is_none_or(|model| engine.models.load().serves(model))
    };
    let with = |standing: fn(HealthState) -> bool| -> Vec<core::WorkerId> {
        let mut ids = Vec::with_capacity(engines.len());
        let mut failing: Vec<core::WorkerId> = Vec::new();
        for engine in engines.iter().filter(|engine| serves(engine) && standing(engine.health.standing())) {
            let is_part = role != Role::Both && engine.config.role != Role::Both;
            let can_hand_over = !is_part || engine.handover().is_some();
            if can_hand_over && !tried.iter().any(|other| Arc::ptr_eq(engine, other)) {
                let of = if engine.recent.is_failing() { &mut failing } else { &mut ids };
                of.extend(engine.ids.get().into_iter().flatten());
            }
        }
        // If more than half of them fail, it is rather something that they share, or the requests.
        if failing.len() > ids.len() {
            ids.append(&mut failing);
        }
        ids.sort_unstable();
        ids
    };
    let up = with(|standing| standing == HealthState::Up);
    if !up.is_empty() {
        return Ok(up);
    }
    // Evidence against all of them is more likely to be wrong than all of them are: somebody has to try. Those that are
    // seen to live come first.
    let alive = |standing| matches!(standing, HealthState::Busy | HealthState::Silent | HealthState::Failing);
    for others in [with(alive), with(|standing| standing == HealthState::Down)] {
        if !others.is_empty() {
            return Ok(others);
        }
    }
    let serving = || engines.iter().filter(|engine| serves(engine));
    if serving().next().is_none() {
        return Err(match model {
            Some(model) if !engines.is_empty() => {
                let shown: String = model.chars().take(128).collect();
                let message = format!("no engine serves the model {shown:?}; GET /v1/models lists the models");
                Refusal::new(StatusCode::NOT_FOUND, "model_not_found", message)
            }
            _ => Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "no_engines", "the router has no engines"),
        });
    }
    let pause = serving().map(|engine| engine.health.busy_for()).filter(|pause| !pause.is_zero()).min();
    Err(refused(core::Refusal::NoWorker).again_after(pause.unwrap_or(Duration::from_secs(1))))
}

/// A rank of the one engine that can take a request, if that is being drained: it still answers for what it keeps.
pub(super) fn keeper(fleet: &Fleet, known: &RequestFacts) -> Option<core::WorkerId> {
    let engine = fleet.engine(known.only.as_deref()?)?;
    if engine.health.standing() != HealthState::Draining {
        return None;
    }
    engine.ids.get()?.first().copied()
}

/// Makes the refusal that a client gets when the decision core places its request nowhere.
pub(super) fn refused(why: core::Refusal) -> Refusal {
    let message = match why {
        core::Refusal::NoWorker => "no engine takes requests at present",
        core::Refusal::QueueFull => "all engines are fully loaded, and the router's queue is full",
        core::Refusal::Displaced => {
            "all engines are fully loaded, the router's queue is full, and a request of higher priority took this one's place"
        }
        core::Refusal::QueueTimeout => {
            "all engines are fully loaded, and the request waited in the router for the longest time allowed"
        }
    };
    let status = StatusCode::from_u16(why.status()).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    Refusal::new(status, why.as_str(), message).again_after(Duration::from_secs(1))
}
