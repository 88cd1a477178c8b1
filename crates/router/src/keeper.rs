//! Interface to the keeper of the fleet: code outside this crate that applies and stores the changes of the fleet
//! requested by clients.
//!
//! Engines come from several sources, such as a file or Kubernetes, which the program around this crate reads. Clients
//! are one more source: the same code then parses the settings of an engine that a client adds, follows the engine's
//! events and stores the change.

use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::answers::refusal::Refusal;
use crate::requests::long_work::LongWork;

/// Maximum number of changes of the fleet that are applied concurrently; further ones wait. A change may take long, as
/// it may be sent to other routers.
const AT_ONCE: usize = 8;

/// Request of a client to change the fleet of engines, or to list the changes in force.
#[derive(Debug, Clone, Serialize)]
pub struct FleetRequest {
    /// Name of the action: `add`, `remove`, `drain` or `undrain` of an engine, or `list` of the changes in force.
    pub action: &'static str,
    /// Name of the engine in the request's path; None for a path without an engine.
    pub name: Option<String>,
    /// Body of the client's request, as JSON text: the settings of an engine to add; empty for other actions.
    pub body: String,
    /// True if the client has sent the key that permits changes of the fleet.
    pub is_known: bool,
    /// True if the other routers in front of the same engines must make the change as well.
    pub at_peers: bool,
}

/// Answer of the keeper (the executor of changes of the fleet) to a client's request.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FleetAnswer {
    /// HTTP status of the answer; 0 if the keeper gave no answer.
    pub status: u16,
    /// Stable error code of a refusal; None if the change was made.
    pub code: Option<String>,
    /// Reason for a refusal, as text.
    pub message: Option<String>,
    /// Name of the engine that was added, removed or drained.
    pub name: Option<String>,
    /// Outcome of the change at each router, if the change was sent to other routers.
    pub routers: Option<Value>,
    /// List of the changes in force, in the answer to `list`.
    pub body: Option<Value>,
}

/// Executor of changes of the fleet that clients request. Calls may block.
pub trait FleetKeeper: Send + Sync + 'static {
    /// Makes the requested change, or returns a refusal.
    fn answer(&self, request: &FleetRequest) -> FleetAnswer;
}

/// Access to the keeper (the executor of changes) of a router's fleet, if the router has one. The keeper's calls run on
/// a limited number of threads.
pub(crate) struct FleetChanges {
    keeper: Mutex<Option<Arc<dyn FleetKeeper>>>,
    threads: LongWork,
}

impl FleetChanges {
    pub(crate) fn new(keeper: Option<Arc<dyn FleetKeeper>>) -> Self {
        Self { keeper: Mutex::new(keeper), threads: LongWork::new(AT_ONCE) }
    }

    /// Drops the reference to the keeper (the executor of changes of the fleet), so that later requests are not passed
    /// to it.
    pub(crate) fn end(&self) {
        *self.keeper.lock() = None;
    }

    /// Passes a request about the fleet to the keeper (the executor of changes of the fleet), and returns the keeper's
    /// answer; None if the router has no keeper.
    pub(crate) async fn ask(&self, request: FleetRequest) -> Result<Option<FleetAnswer>, Refusal> {
        let Some(keeper) = self.keeper.lock().clone() else { return Ok(None) };
        self.threads.run(move || keeper.answer(&request)).await.map(Some)
    }
}
