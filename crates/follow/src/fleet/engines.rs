//! Engines that discovery (the automatic finding and registration of engines) watches, whether registered or not, and
//! the conditions that keep the service from being ready.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Deserialize;

use super::registry::WorkerView;

/// Maximum length of a problem's description, in bytes. A description may quote an engine's answer.
const MAX_REASON: usize = 1024;

/// State of an engine in discovery, the automatic finding and registration of engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineState {
    /// The engine is being queried for the first time, and has not answered yet.
    Asking,
    /// All data-parallel ranks of the engine are registered.
    Registered,
    /// The engine cannot be reached or does not answer in time.
    Unreachable,
    /// The engine does not publish KV events.
    NoEvents,
    /// The engine's answers are not as expected, so that the engine cannot be registered.
    Unusable,
    /// The service refuses to register the engine.
    Refused,
}

impl EngineState {
    /// All states of an engine in discovery, in the order in which metrics list the states.
    pub const ALL: [Self; 6] =
        [Self::Asking, Self::Registered, Self::Unreachable, Self::NoEvents, Self::Unusable, Self::Refused];

    /// Returns the name of this state of an engine in HTTP answers and metrics.
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

/// Report of discovery (the automatic registration of engines) on one engine, or on one stream listed in the
/// configuration.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineReport {
    /// Name of the worker.
    pub worker: String,
    /// Data-parallel rank of a configured stream; `None` for an engine with all its ranks.
    pub rank: Option<u32>,
    /// URL of the engine, or endpoint of the configured stream.
    pub url: String,
    /// State of finding and registering the engine or configured stream.
    pub state: EngineState,
    /// Error code of the last problem with the engine or configured stream, equal in every release; `None` if there was
    /// none.
    pub code: Option<String>,
    /// Human-readable description of the last problem with the engine or configured stream; `None` if there was none.
    pub reason: Option<String>,
}

/// Report of discovery (the automatic registration of engines) on one engine or configured stream, with the age of its
/// state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineView {
    /// Name of the worker.
    pub worker: Arc<str>,
    /// Data-parallel rank of a configured stream; `None` for an engine with all its ranks.
    pub rank: Option<u32>,
    /// URL of the engine, or endpoint of the configured stream.
    pub url: Arc<str>,
    /// State of finding and registering the engine or configured stream.
    pub state: EngineState,
    /// Error code of the last problem with the engine or configured stream, equal in every release; `None` if there was
    /// none.
    pub code: Option<Arc<str>>,
    /// Human-readable description of the last problem with the engine or configured stream; `None` if there was none.
    pub reason: Option<Arc<str>>,
    /// Time for which the engine or configured stream has been in the current state.
    pub since: Duration,
}

struct Engine {
    url: Arc<str>,
    state: EngineState,
    code: Option<Arc<str>>,
    reason: Option<Arc<str>>,
    since: Instant,
}

/// Key of a report: the worker's name, and the rank if the report is on a configured stream.
type Key = (Arc<str>, Option<u32>);

/// Latest reports of discovery (the automatic registration of engines) on all engines and configured streams.
#[derive(Default)]
pub(super) struct Engines {
    followed: Mutex<BTreeMap<Key, Engine>>,
}

impl Engines {
    /// Stores a report on an engine or configured stream, in place of the previous one.
    pub(super) fn report(&self, report: EngineReport) {
        let EngineReport { worker, rank, url, state, code, reason } = report;
        let mut followed = self.followed.lock();
        let key = (worker.into(), rank);
        let before = followed.get(&key).filter(|before| before.state == state);
        let since = before.map_or_else(Instant::now, |before| before.since);
        let reason = reason.map(|reason| shortened(&reason).into());
        followed.insert(key, Engine { url: url.into(), state, code: code.map(Into::into), reason, since });
    }

    /// Removes the report on an engine or configured stream. Returns false if there was none.
    pub(super) fn forget(&self, worker: &str, rank: Option<u32>) -> bool {
        self.followed.lock().remove(&(worker.into(), rank)).is_some()
    }

    /// Returns the reports on all engines and configured streams, sorted by worker and rank.
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

/// Unmet conditions of readiness. All fields are empty or false if the service is ready.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Blockers {
    /// Names of holds that have not been released. A hold is a configured condition that keeps the service from being
    /// ready.
    pub holds: Vec<String>,
    /// Streams whose first replay has neither finished nor been given up, each as worker, rank and state.
    pub streams: Vec<(Arc<str>, u32, &'static str)>,
    /// Engines that have been found but not registered yet. The service becomes ready without them, unless no engine at
    /// all is registered.
    pub engines: Vec<EngineView>,
    /// True if engines have been found, but none of them is registered.
    pub none_usable: bool,
    /// True if the service is shutting down.
    pub draining: bool,
}

impl Blockers {
    /// True if all conditions of the service's readiness are met.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.holds.is_empty() && self.streams.is_empty() && !self.none_usable && !self.draining
    }
}

/// Lists the streams whose first replay has neither finished nor been given up, each as worker, rank and state.
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
