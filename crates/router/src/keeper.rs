//! The keeper of the fleet: it applies the changes of the fleet that clients ask for, and remembers them.
//!
//! Engines come from several sources, which the program around this crate reads and follows. An engine that a client adds
//! is one of another source, so its settings are read, its events followed and its changes kept by the same code.

use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::answers::refusal::Refusal;
use crate::requests::long_work::LongWork;

/// Changes that are applied at once; the others wait. Each may wait for other routers.
const AT_ONCE: usize = 8;

/// A change of the fleet, or a question about such changes, as a client asks for it.
#[derive(Debug, Clone, Serialize)]
pub struct FleetRequest {
    /// The change: `add`, `remove`, `drain` or `undrain`; or `list` for those that hold.
    pub action: &'static str,
    /// Name of the engine, if the path names one.
    pub name: Option<String>,
    /// The request's body: for `add`, an engine in JSON.
    pub body: String,
    /// True if the client has shown the key that allows changes.
    pub is_known: bool,
    /// True if the other routers of the group are to make the change as well.
    pub at_peers: bool,
}

/// A keeper's answer.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FleetAnswer {
    /// Status of the answer; 0 for an answer that is none.
    pub status: u16,
    /// Stable code of a refusal; none if the change was made.
    pub code: Option<String>,
    /// The reason for a refusal, in words.
    pub message: Option<String>,
    /// Name of the engine that was changed.
    pub name: Option<String>,
    /// Outcome at each router, if others were told.
    pub routers: Option<Value>,
    /// The answer itself, for `list`.
    pub body: Option<Value>,
}

/// A keeper of the fleet. It may wait.
pub trait FleetKeeper: Send + Sync + 'static {
    /// Makes a change, or says why not.
    fn answer(&self, request: &FleetRequest) -> FleetAnswer;
}

/// The keeper of a router, if it has one, and the threads on which it is asked.
pub(crate) struct FleetChanges {
    keeper: Mutex<Option<Arc<dyn FleetKeeper>>>,
    threads: LongWork,
}

impl FleetChanges {
    pub(crate) fn new(keeper: Option<Arc<dyn FleetKeeper>>) -> Self {
        Self { keeper: Mutex::new(keeper), threads: LongWork::new(AT_ONCE) }
    }

    /// Lets the keeper go.
    pub(crate) fn end(&self) {
        *self.keeper.lock() = None;
    }

    /// Lets the keeper answer a request about the fleet; None if there is no keeper.
    pub(crate) async fn ask(&self, request: FleetRequest) -> Result<Option<FleetAnswer>, Refusal> {
        let Some(keeper) = self.keeper.lock().clone() else { return Ok(None) };
        self.threads.run(move || keeper.answer(&request)).await.map(Some)
    }
}
