//! Who may take a request.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use kvatlas_routing as core;

use super::choose::refused;
use crate::config::Role;
use crate::engine::{Engine, Standing};
use crate::fleet::Fleet;
use crate::prompts::Known;
use crate::refusal::Refusal;

/// The ranks of engines that may take a request, at least one.
pub(super) fn candidates(
    fleet: &Fleet,
    known: &Known,
    role: Role,
    tried: &[Arc<Engine>],
) -> Result<Vec<core::WorkerId>, Refusal> {
    let engines = fleet.engines();
    let model = known.model.as_deref();
    let may = |engine: &Engine| known.only.as_ref().is_none_or(|only| *only == engine.name);
    let serves = |engine: &Engine| {
        may(engine) && engine.does(role) && model.is_none_or(|model| engine.models.load().serves(model))
    };
    let with = |standing: fn(Standing) -> bool| -> Vec<core::WorkerId> {
        let mut ids = Vec::with_capacity(engines.len());
        for engine in engines.iter().filter(|engine| serves(engine) && standing(engine.health.standing())) {
            let can_hand_over = role == Role::Both || !engine.config.awaits_kind;
            if can_hand_over && !tried.iter().any(|other| Arc::ptr_eq(engine, other)) {
                ids.extend(engine.ids.get().into_iter().flatten());
            }
        }
        ids.sort_unstable();
        ids
    };
    let up = with(|standing| standing == Standing::Up);
    if !up.is_empty() {
        return Ok(up);
    }
    // Evidence against all of them is more likely to be wrong than all of them are: somebody has to try.
    let others = with(|standing| matches!(standing, Standing::Down | Standing::Failing | Standing::Silent));
    if !others.is_empty() {
        return Ok(others);
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
pub(super) fn keeper(fleet: &Fleet, known: &Known) -> Option<core::WorkerId> {
    let engine = fleet.engine(known.only.as_deref()?)?;
    if engine.health.standing() != Standing::Draining {
        return None;
    }
    engine.ids.get()?.first().copied()
}

/// The decision core's number for a worker's rank.
pub(crate) fn row(engines: &[Arc<Engine>], worker: &str, rank: u32) -> Option<u32> {
    let at = engines.binary_search_by(|engine| (*engine.name).cmp(worker)).ok()?;
    engines[at].ids.get()?.get(engines[at].config.ranks.place(rank)?).map(|id| id.0)
}
