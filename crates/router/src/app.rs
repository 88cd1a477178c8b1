//! The state of a router that requests share.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kvatlas_follow::Follower;
use kvatlas_follow::shown::Page;
use kvatlas_http::{Front, Gate};

use crate::answers::stored::AnswerEngines;
use crate::config::Config;
use crate::engines::fleet::Fleet;
use crate::placing::Places;
use crate::proxy::Tokens;
use crate::proxy::counts::Counts;
use crate::remote::cache_reports::CacheReporter;
use crate::remote::external_index::ExternalIndex;
use crate::remote::peers::Peers;
use crate::requests::prompts::Prompts;
use crate::requests::sessions::Sessions;

/// The state of a router that requests share.
pub(crate) struct App {
    pub(crate) config: Arc<Config>,
    pub(crate) fleet: Fleet,
    pub(crate) places: Arc<Places>,
    pub(crate) counts: Counts,
    /// The state of the HTTP server.
    pub(crate) front: Front,
    pub(crate) gate: Arc<Gate>,
    pub(crate) prompts: Prompts,
    /// The service in this process, if there is one.
    pub(crate) service: Option<Follower>,
    /// Another process that is asked what engines hold, if one is.
    pub(crate) external_index: Option<ExternalIndex>,
    /// The index in another process, as far as it learns by what engines say.
    pub(crate) cache_reporter: Option<Arc<CacheReporter>>,
    /// The sessions that requests belong to.
    pub(crate) sessions: Sessions,
    /// Completions that go to engines as token ids.
    pub(crate) tokens: Tokens,
    /// The engines that keep answers, by the answers that they made.
    pub(crate) answer_engines: AnswerEngines,
    /// Other routers in front of the same engines.
    pub(crate) peers: Arc<Peers>,
    /// The page that shows the router, for those who look at it.
    pub(crate) page: Page,
    /// True if the router is about to end.
    pub(crate) leaving: AtomicBool,
}
