//! Where a request goes: the decision core, and what it has to be told.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName};

use crate::config::Role;
use crate::engine::{Engine, Standing};
use crate::fleet::Fleet;
use crate::observe::Seen;
use crate::refusal::Refusal;

const WORKER: HeaderName = HeaderName::from_static("x-kvatlas-worker");

/// What is asked of an engine.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asked<'a> {
    /// The model, if the request names one.
    pub(crate) model: Option<&'a str>,
    pub(crate) role: Role,
}

/// An engine that takes a request.
pub(crate) struct Placement {
    pub(crate) engine: Arc<Engine>,
    pub(crate) rank: Option<u32>,
}

impl Placement {
    /// Puts who answers, and why, into the headers of an answer.
    pub(crate) fn tell(&self, headers: &mut HeaderMap) {
        headers.insert(WORKER, self.engine.header.clone());
    }
}

/// Decides.
pub(crate) struct Places {
    next: AtomicUsize,
}

impl Places {
    pub(crate) fn new() -> Self {
        Self { next: AtomicUsize::new(0) }
    }

    /// An engine for a request, not one of `tried` if there is another.
    pub(crate) fn choose(&self, fleet: &Fleet, asked: &Asked<'_>, tried: &[Arc<Engine>]) -> Result<Placement, Refusal> {
        let engines = candidates(fleet, asked, tried)?;
        let at = self.next.fetch_add(1, Relaxed) % engines.len();
        Ok(Placement { engine: engines[at].clone(), rank: None })
    }

    pub(crate) fn first_token(&self, _placement: &Placement) {}
    pub(crate) fn progress(&self, _placement: &Placement, _events: u32) {}
    pub(crate) fn finish(&self, _placement: &Placement, _seen: Seen, _took: Duration) {}
    pub(crate) fn fail(&self, _placement: &Placement) {}
    pub(crate) fn cancel(&self, _placement: &Placement) {}
}

/// The engines that may take a request, at least one.
fn candidates(fleet: &Fleet, asked: &Asked<'_>, tried: &[Arc<Engine>]) -> Result<Vec<Arc<Engine>>, Refusal> {
    let engines = fleet.engines();
    let of_role = engines.iter().filter(|engine| engine.does(asked.role));
    let serving: Vec<_> =
        of_role.filter(|engine| asked.model.is_none_or(|model| engine.models.load().serves(model))).collect();
    if serving.is_empty() {
        return Err(match asked.model {
            Some(model) if !engines.is_empty() => {
                let message =
                    format!("no engine serves the model {model:?}; GET /v1/models lists those that there are");
                Refusal::new(StatusCode::NOT_FOUND, "model_not_found", message)
            }
            _ => Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "no_engines", "there are no engines"),
        });
    }
    let is_new = |engine: &&Arc<Engine>| !tried.iter().any(|other| Arc::ptr_eq(engine, other));
    let with = |standing: fn(Standing) -> bool| -> Vec<Arc<Engine>> {
        let stand = serving.iter().copied().filter(is_new);
        stand.filter(|engine| standing(engine.health.standing())).cloned().collect()
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
    let pause = serving.iter().map(|engine| engine.health.busy_for()).filter(|pause| !pause.is_zero()).min();
    let message = "no engine takes requests now";
    Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "no_engine_available", message)
        .again_after(pause.unwrap_or(Duration::from_secs(1))))
}
