//! Engines that discovery follows, registered or not, and the unmet conditions of readiness.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Deserialize;

use super::registry::WorkerView;

/// Maximum length of a reason, in bytes; a reason may quote an engine's answer.
const MAX_REASON: usize = 1024;

/// State of an engine in discovery, which registers engines by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineState {
    /// The engine is being asked for the first time.
    Asking,
    /// All ranks of the engine are registered.
    Registered,
    /// The engine cannot be reached or does not answer in time.
    Unreachable,
    /// The engine publishes no events.
    NoEvents,
    /// The engine's answers cannot be used.
    Unusable,
    /// This service refuses to register the engine.
    Refused,
}

impl EngineState {
    /// All states, in the order of metrics.
    pub const ALL: [Self; 6] =
        [Self::Asking, Self::Registered, Self::Unreachable, Self::NoEvents, Self::Unusable, Self::Refused];

    /// Name of the state in answers and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Asking => "asking",
            Self::Registered => "registered",
            Self::Unreachable => "unreachable",
            Self::NoEvents => "no_events",
            Self::Unusable => "unusable",
            Self::Refused => "refused",
        }
    }
}

/// Discovery's report on one engine or configured stream.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineReport {
    /// Name of the worker.
    pub worker: String,
    /// Rank of a configured stream; `None` for an engine with all its ranks.
    pub rank: Option<u32>,
    /// URL of the engine, or endpoint of the configured stream.
    pub url: String,
    /// State of the engine in discovery.
    pub state: EngineState,
    /// Stable code of the last problem; `None` if there was none.
    pub code: Option<String>,
    /// Description of the last problem, for people.
    pub reason: Option<String>,
}

/// Discovery's report on an engine or a configured stream, with its age.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineView {
    /// Name of the worker.
    pub worker: Arc<str>,
    /// Rank of a configured stream; `None` for an engine with all its ranks.
    pub rank: Option<u32>,
    /// URL of the engine, or endpoint of the configured stream.
    pub url: Arc<str>,
    /// State of the engine in discovery.
    pub state: EngineState,
    /// Stable code of the last problem; `None` if there was none.
    pub code: Option<Arc<str>>,
    /// Description of the last problem, for people.
    pub reason: Option<Arc<str>>,
    /// Time that the engine has been in this state.
    pub since: Duration,
}

struct Engine {
    url: Arc<str>,
    state: EngineState,
    code: Option<Arc<str>>,
    reason: Option<Arc<str>>,
    since: Instant,
}

/// Key of a report: a worker's name, and the rank if it is a configured stream.
type Key = (Arc<str>, Option<u32>);

/// All engines and configured streams that discovery reports on.
#[derive(Default)]
pub(super) struct Engines {
    followed: Mutex<BTreeMap<Key, Engine>>,
}

impl Engines {
    /// Stores a report on an engine or a configured stream, in place of the previous one.
    pub(super) fn report(&self, report: EngineReport) {
        let EngineReport { worker, rank, url, state, code, reason } = report;
        let mut followed = self.followed.lock();
        let key = (worker.into(), rank);
        let before = followed.get(&key).filter(|before| before.state == state);
        let since = before.map_or_else(Instant::now, |before| before.since);
        let reason = reason.map(|reason| shortened(&reason).into());
        followed.insert(key, Engine { url: url.into(), state, code: code.map(Into::into), reason, since });
    }

    /// Forgets an engine or a configured stream. False if it was unknown.
    pub(super) fn forget(&self, worker: &str, rank: Option<u32>) -> bool {
        self.followed.lock().remove(&(worker.into(), rank)).is_some()
    }

    /// Reports on all engines and configured streams, by worker and rank.
    pub(super) fn views(&self) -> Vec<EngineView> {
        let followed = self.followed.lock();
        let view = |((worker, rank), it): (&Key, &Engine)| EngineView {
            worker: worker.clone(),
            rank: *rank,
            url: it.url.clone(),
            state: it.state,
            code: it.code.clone(),
            reason: it.reason.clone(),
            since: it.since.elapsed(),
        };
        followed.iter().map(view).collect()
    }
}

fn shortened(reason: &str) -> &str {
    let end = (0..=MAX_REASON.min(reason.len())).rev().find(|end| reason.is_char_boundary(*end));
    &reason[..end.unwrap_or(0)]
}

/// Unmet conditions of readiness: streams, engines and holds; all empty if the service is ready.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Blockers {
    /// Names of holds on readiness that have not been released.
    pub holds: Vec<String>,
    /// Streams whose first replay has neither finished nor been given up: worker, rank, state.
    pub streams: Vec<(Arc<str>, u32, &'static str)>,
    /// Engines that discovery has not registered. Readiness does not wait for them, unless no engine is registered.
    pub engines: Vec<EngineView>,
    /// True if there are engines to be followed and none is registered.
    pub none_usable: bool,
    /// True if the service is shutting down.
    pub draining: bool,
}

impl Blockers {
    /// True if no condition of readiness is unmet.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.holds.is_empty() && self.streams.is_empty() && !self.none_usable && !self.draining
    }
}

/// Streams whose first replay has neither finished nor been given up: worker, rank, state.
pub(super) fn unsettled(workers: Vec<WorkerView>) -> Vec<(Arc<str>, u32, &'static str)> {
    let streams = workers.into_iter().flat_map(|worker| worker.streams);
    streams
        .filter(|(_, stream)| !stream.status.is_settled())
        .map(|(rank, stream)| (stream.worker.clone(), rank, stream.status.state().name()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(state: EngineState, reason: Option<&str>) -> EngineReport {
        let (worker, url) = ("w".to_owned(), "http://w:1".to_owned());
        EngineReport { worker, rank: None, url, state, code: None, reason: reason.map(str::to_owned) }
    }

    #[test]
    fn the_time_is_that_of_the_state() {
        let engines = Engines::default();
        engines.report(report(EngineState::Unreachable, Some("away")));
        let first = engines.followed.lock()[&("w".into(), None)].since;
        engines.report(report(EngineState::Unreachable, Some("still away")));
        let since = |engines: &Engines| engines.followed.lock()[&("w".into(), None)].since;
        assert_eq!(since(&engines), first);
        assert_eq!(engines.views()[0].reason.as_deref(), Some("still away"));
        engines.report(report(EngineState::Registered, None));
        assert!(since(&engines) >= first);
        assert_eq!((engines.views().len(), engines.views()[0].reason.clone()), (1, None));
        assert!(engines.forget("w", None) && !engines.forget("w", None) && engines.views().is_empty());
    }

    #[test]
    fn reasons_are_bounded() {
        let engines = Engines::default();
        engines.report(report(EngineState::Unusable, Some(&"é".repeat(10_000))));
        assert_eq!(engines.views()[0].reason.as_ref().map(|reason| reason.len()), Some(MAX_REASON));
    }
}
