//! Engines that are to be followed, and what answers wait for.

use serde_json::{Value, json as value};

use super::ids::id_value;
use crate::fleet::{Blockers, EngineView, Fleet};

/// The parts of a fleet that are not complete; nothing if all are.
#[must_use]
pub fn not_ready(fleet: &Fleet) -> Option<Value> {
    let incomplete = fleet.waiting();
    (!incomplete.is_over()).then(|| waiting(&incomplete))
}

/// The list of all that readiness waits for.
#[must_use]
pub fn waiting(waiting: &Blockers) -> Value {
    let streams: Vec<_> = waiting
        .streams
        .iter()
        .map(|(worker, rank, state)| value!({ "instance_id": id_value(worker), "dp_rank": rank, "state": state }))
        .collect();
    let engines: Vec<_> = waiting.engines.iter().map(engine).collect();
    value!({ "holds": waiting.holds, "streams": streams, "engines": engines, "draining": waiting.draining })
}

/// The engines that discovery follows, registered or not.
#[must_use]
pub fn engines(fleet: &Fleet) -> Value {
    fleet.engines().iter().map(engine).collect()
}

fn engine(engine: &EngineView) -> Value {
    value!({
        "instance_id": id_value(&engine.worker),
        "dp_rank": engine.rank,
        "url": *engine.url,
        "state": engine.state.name(),
        "code": engine.code.as_deref(),
        "reason": engine.reason.as_deref(),
        "since_ms": engine.since.as_millis() as u64,
    })
}
