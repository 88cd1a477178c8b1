//! Reports on the router, and changes by operators. This file makes the reports on engines, models and the router as
//! JSON.
//!
//! | file | contents |
//! |---|---|
//! | `exposition.rs`, `model_metrics.rs` | `GET /metrics` |
//! | `page` | the web page at `GET /ui` |
//! | `admin.rs` | readiness, explanations, snapshots, changes of the fleet, reports of other routers |

pub(crate) mod admin;
pub(crate) mod exposition;
mod model_metrics;
pub(crate) mod page;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use kvatlas_routing::ChoiceReason;
use serde_json::{Value, json};

use crate::app::App;
use crate::engines::Engine;
use crate::engines::fleet::Fleet;
use crate::placing::Places;

/// Returns the state of all engines as JSON, for the answer to `GET /workers`.
pub(crate) fn workers(places: &Places) -> Value {
    places.fleet().engines().iter().map(|engine| worker(places, engine)).collect()
}

/// Returns the state of one engine as JSON.
pub(crate) fn worker(places: &Places, engine: &Engine) -> Value {
    let counts = &engine.counts;
    let models = engine.models.load();
    let record = engine.record.lock().clone();
    json!({
        "name": &*engine.name,
        "url": &engine.config.url,
        "role": engine.config.role.name(),
        "standing": engine.health.standing().name(),
        "events": record.events_to_json(),
        "condition": record.condition_to_json(),
        "models": models.names.iter().map(|model| &*model.name).collect::<Vec<_>>(),
        "max_model_len": engine.max_len(None),
        "weight": engine.config.weight,
        "pull": engine.config.pull.as_ref().map(|address| json!({
            "address": address,
            "group": engine.config.pull_group.as_deref().unwrap_or_default(),
            "possible": engine.pulls(),
        })),
        "ranks": places.rows_of(engine),
        "in_flight": counts.in_flight.load(Relaxed),
        "waiting": counts.waiting.load(Relaxed),
        "answers": counts.answers().iter().sum::<u64>(),
        "faults": counts.faults().iter().sum::<u64>(),
        "broken": counts.broken.load(Relaxed),
        "cancelled": counts.cancelled.load(Relaxed),
        "cached_tokens": counts.cached_tokens(),
        "prompt_tokens": counts.models.total(|model| &model.prompt_tokens),
        "output_tokens": counts.models.total(|model| &model.output_tokens),
    })
}

/// Returns the state of the router itself as JSON.
pub(crate) fn router(app: &App) -> Value {
    let counts = &app.counts;
    let places = app.places.summary();
    let [fleet, unlimited] = app.places.possible_hit_rates();
    json!({
        "policy": places.policy,
        "in_flight": places.in_flight,
        "queued": places.waiting + places.waiting_for_engine,
        "waiting_for_engine": places.waiting_for_engine,
        "requests": counts.all_requests(),
        "refused": counts.refused.by_code(),
        "connections": app.front.connections(),
        "retries": counts.all_retries(),
        "expected_cached_tokens": places.counts.expected_cached,
        "reported_cached_tokens": places.counts.reported_cached,
        "placed": places.counts.placed,
        "policy_failed": places.counts.why[ChoiceReason::PolicyFailed as usize],
        "record": app.places.recorder.as_ref().map(|recorder| recorder.counts().to_json()),
        "possible_hit_rate": { "fleet": fleet, "unlimited": unlimited },
        "changing_prompts": app.proxy.sessions.habits(),
        "unread_prompts": app.reader.prompts.unread.condition(),
        "discovery": app.sources.to_json(),
    })
}

/// Returns the models of all engines as JSON, each model once: the entry of one engine, with the longest context length
/// of all engines.
pub(crate) fn models(fleet: &Fleet) -> Value {
    let mut seen: BTreeMap<String, Value> = BTreeMap::new();
    for engine in fleet.engines().iter() {
        for model in &engine.models.load().names {
            let shown = seen.entry(model.name.clone()).or_insert_with(|| model.card.clone());
            let lengths = [&*shown, &model.card].map(|card| card["max_model_len"].as_u64());
            if lengths[1] > lengths[0] {
                shown["max_model_len"] = lengths[1].into();
            }
        }
    }
    json!({ "object": "list", "data": seen.into_values().collect::<Vec<_>>() })
}
