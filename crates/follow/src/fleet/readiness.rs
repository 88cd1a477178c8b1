//! The state of readiness: what it waits for.

use std::sync::Arc;

use super::engines::EngineView;
use super::registry::WorkerView;

/// The streams, engines and holds that readiness waits for; nothing if ready.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Blockers {
    /// Names that nobody has released.
    pub holds: Vec<String>,
    /// Streams whose first replay is still running: worker, rank, state.
    pub streams: Vec<(Arc<str>, u32, &'static str)>,
    /// Engines that discovery has not registered. They are not waited for, unless nothing is registered.
    pub engines: Vec<EngineView>,
    /// True if there are engines to be followed, and none is registered.
    pub none_usable: bool,
    /// True if the service is shutting down.
    pub draining: bool,
}

impl Blockers {
    /// True if there is nothing to wait for.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.holds.is_empty() && self.streams.is_empty() && !self.none_usable && !self.draining
    }
}

/// The streams whose first replay has neither finished nor been given up.
pub(super) fn unsettled(workers: Vec<WorkerView>) -> Vec<(Arc<str>, u32, &'static str)> {
    let streams = workers.into_iter().flat_map(|worker| worker.streams);
    streams
        .filter(|(_, stream)| !stream.status.is_settled())
        .map(|(rank, stream)| (stream.worker.clone(), rank, stream.status.state().name()))
        .collect()
}
