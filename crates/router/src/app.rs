//! What every request may need.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kvatlas_service::gate::Gate;

use crate::config::Config;
use crate::counts::Counts;
use crate::fleet::Fleet;
use crate::place::Places;

/// What every request may need.
pub struct App {
    pub(crate) config: Arc<Config>,
    pub(crate) fleet: Fleet,
    pub(crate) places: Places,
    pub(crate) counts: Counts,
    pub(crate) gate: Gate,
    /// The same without a key, for administrators' own listener.
    pub(crate) leaving: AtomicBool,
}
