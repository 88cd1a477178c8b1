//! Finds the engines that may take a request.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use kvatlas_routing as core;

use crate::config::Role;
use crate::engine::{Engine, HealthState, Serving};
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
    let room = known.room(role);
    let serving = |engine: &Engine| {
        let models = engine.models.load();
        let has_room = || models.have_room(room) || engine.has_room(model, room);
        match model {
            _ if !may(engine) || !engine.does(role) || !has_room() => Serving::Not,
            Some(model) => models.serving(model),
            None => Serving::Listed,
        }
    };
    let with = |how: Serving, standing: fn(HealthState) -> bool| -> Vec<core::WorkerId> {
        let mut ids = Vec::with_capacity(engines.len());
        let mut failing: Vec<core::WorkerId> = Vec::new();
        for engine in engines.iter().filter(|it| standing(it.health.standing()) && serving(it) == how) {
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
    let is_up = |standing| standing == HealthState::Up;
    // Evidence against all of them is more likely to be wrong than all of them are: one has to be tried.
    let is_doubted = |standing| matches!(standing, HealthState::Down | HealthState::Failing | HealthState::Silent);
    for (how, standing) in [
        (Serving::Listed, is_up as fn(HealthState) -> bool),
        (Serving::Unknown, is_up),
        (Serving::Listed, is_doubted),
        (Serving::Unknown, is_doubted),
        (Serving::Denied, is_up),
        (Serving::Denied, is_doubted),
    ] {
        let found = with(how, standing);
        if !found.is_empty() {
            return Ok(found);
        }
    }
    let serving = || engines.iter().filter(|engine| serving(engine) != Serving::Not);
    if serving().next().is_none() {
        let lacking = engines.iter().filter(|engine| may(engine) && engine.does(role));
        let lacking = lacking.filter(|engine| engine.models.load().may_serve(model));
        if let Some(most) = lacking.filter_map(|engine| engine.max_len(model)).max() {
            return Err(too_long(known, role, most));
        }
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

/// True if an engine that has not been asked may serve a request's model.
pub(crate) fn may_be_served_elsewhere(fleet: &Fleet, known: &RequestFacts, role: Role, asked: &[&Arc<Engine>]) -> bool {
    let (Some(model), None) = (known.model.as_deref(), &known.only) else { return false };
    fleet.engines().iter().any(|engine| {
        let is_new = !asked.iter().any(|other| Arc::ptr_eq(engine, other)) && engine.does(role);
        is_new
            && engine.health.standing() != HealthState::Draining
            && engine.has_room(known.model.as_deref(), known.room(role))
            && matches!(engine.models.load().serving(model), Serving::Listed | Serving::Unknown)
    })
}

/// The refusal of a request for which the context of no engine has room, that of the largest so many tokens.
fn too_long(known: &RequestFacts, role: Role, most: u32) -> Refusal {
    let (prompt, answer) = (known.tokens, known.room(role) - known.tokens);
    // The words by which clients of both APIs know it, and shorten the prompt or the answer.
    let message = if prompt.saturating_add(answer.min(1)) > most {
        format!(
            "prompt is too long: {prompt} tokens > {most} maximum. This model's maximum context length is {most} \
             tokens, and the answer needs one of them: reduce the length of the prompt"
        )
    } else {
        format!(
            "input length and `max_tokens` exceed context limit: {prompt} + {answer} > {most}, decrease input length \
             or `max_tokens` and try again. This model's maximum context length is {most} tokens, and the request \
             wants {} ({prompt} in the prompt, {answer} in the answer)",
            u64::from(prompt) + u64::from(answer)
        )
    };
    Refusal::bad("context_length_exceeded", message).about(known.prompt_field)
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
