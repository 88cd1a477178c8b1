//! What every request may need.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kvatlas_http::{Front, Gate};
use kvatlas_service::Follower;
use kvatlas_service::shown::Page;

use crate::config::Config;
use crate::counts::Counts;
use crate::elsewhere::Elsewhere;
use crate::fleet::Fleet;
use crate::observed::Observed;
use crate::peers::Peers;
use crate::place::Places;
use crate::prompts::Prompts;
use crate::proxy::Tokens;
use crate::stored::Stored;

/// What every request may need.
pub(crate) struct App {
    pub(crate) config: Arc<Config>,
    pub(crate) fleet: Fleet,
    pub(crate) places: Places,
    pub(crate) counts: Counts,
    /// What the HTTP server has.
    pub(crate) front: Front,
    pub(crate) gate: Arc<Gate>,
    pub(crate) prompts: Prompts,
    /// The service in this process, if there is one.
    pub(crate) service: Option<Follower>,
    /// Another process that is asked what engines hold, if one is.
    pub(crate) elsewhere: Option<Elsewhere>,
    /// The index in another process, as far as it learns by what engines say.
    pub(crate) observed: Option<Arc<Observed>>,
    /// Completions that go to engines as token ids.
    pub(crate) tokens: Tokens,
    /// Who made which answer, where engines keep them.
    pub(crate) stored: Stored,
    /// Other routers in front of the same engines.
    pub(crate) peers: Peers,
    /// What is looked at.
    pub(crate) page: Page,
    /// Whether the router is about to end.
    pub(crate) leaving: AtomicBool,
}
