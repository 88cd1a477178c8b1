//! The keeper of the fleet: it applies changes of the fleet requested by clients, and remembers them.
//!
//! Engines come from several sources, which the program around this crate reads and follows. Clients are one more
//! source: the same code parses the settings of an engine that a client adds, follows the engine's events and stores
//! the change.

use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::answers::refusal::Refusal;
use crate::requests::long_work::LongWork;

/// Maximum number of changes applied at once; others wait. Each one may take long, as it may be sent to other routers.
const AT_ONCE: usize = 8;

/// Request of a client to change the fleet, or to list the changes.
#[derive(Debug, Clone, Serialize)]
pub struct FleetRequest {
    /// The change: `add`, `remove`, `drain` or `undrain`; or `list` to list the changes in force.
    pub action: &'static str,
    /// Name of the engine in the request's path; None if the path names none.
    pub name: Option<String>,
    /// The request's body; for `add`, the engine's settings as JSON.
    pub body: String,
    /// True if the client has sent the key that permits changes.
    pub is_known: bool,
    /// True if the other routers of the group shall make the change as well.
    pub at_peers: bool,
}

/// A keeper's answer to a request about the fleet.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FleetAnswer {
    /// HTTP status of the answer; 0 if the answer is empty.
    pub status: u16,
    /// Stable error code of a refusal; None if the change was made.
    pub code: Option<String>,
    /// Reason for a refusal, as text.
    pub message: Option<String>,
    /// Name of the changed engine.
    pub name: Option<String>,
    /// Outcome at each router, if the change was sent to others.
    pub routers: Option<Value>,
    /// The list of changes, for `list`.
    pub body: Option<Value>,
}

/// Applies changes of the fleet. Calls may block.
pub trait FleetKeeper: Send + Sync + 'static {
    /// Makes a change, or returns a refusal.
    fn answer(&self, request: &FleetRequest) -> FleetAnswer;
}

/// The keeper of a router's fleet, if it has one, and the threads on which it is called.
pub(crate) struct FleetChanges {
    keeper: Mutex<Option<Arc<dyn FleetKeeper>>>,
    threads: LongWork,
}

impl FleetChanges {
    pub(crate) fn new(keeper: Option<Arc<dyn FleetKeeper>>) -> Self {
        Self { keeper: Mutex::new(keeper), threads: LongWork::new(AT_ONCE) }
    }

    /// Releases the keeper.
    pub(crate) fn end(&self) {
        *self.keeper.lock() = None;
    }

    /// Lets the keeper answer a request about the fleet; None if there is no keeper.
    pub(crate) async fn ask(&self, request: FleetRequest) -> Result<Option<FleetAnswer>, Refusal> {
        let Some(keeper) = self.keeper.lock().clone() else { return Ok(None) };
        self.threads.run(move || keeper.answer(&request)).await.map(Some)
    }
}
