//! The parts of a router that requests and reports share.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use kvatlas_follow::Follower;
use kvatlas_follow::page::Page;
use kvatlas_follow::sources::Sources;
use kvatlas_http::{Front, Gate};

use crate::config::Config;
use crate::counts::Counts;
use crate::engines::fleet::Fleet;
use crate::keeper::FleetChanges;
use crate::placing::Places;
use crate::proxy::Forwarder;
use crate::remote::cache_reports::CacheReporter;
use crate::remote::index::ExternalIndex;
use crate::remote::peers::Peers;
use crate::requests::read_body::BodyReader;
use crate::spans::Spans;

/// The parts of a router that requests and reports share.
pub(crate) struct App {
    pub(crate) config: Arc<Config>,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) places: Arc<Places>,
    pub(crate) counts: Arc<Counts>,
    /// The state of the HTTP server.
    pub(crate) front: Front,
    pub(crate) gate: Arc<Gate>,
    pub(crate) reader: Arc<BodyReader>,
    pub(crate) proxy: Arc<Forwarder>,
    /// The engines' event streams, if this router follows them.
    pub(crate) follower: Option<Arc<Follower>>,
    /// Sources of engines that discovery reports on.
    pub(crate) sources: Arc<Sources>,
    /// Another process that is asked what engines hold, if one is.
    pub(crate) external_index: Option<Arc<ExternalIndex>>,
    /// Reports to the index in another process, if it learns from what engines say.
    pub(crate) cache_reporter: Option<Arc<CacheReporter>>,
    /// The keeper of the fleet, which makes the changes that clients ask for.
    pub(crate) changes: FleetChanges,
    /// Other routers in front of the same engines.
    pub(crate) peers: Arc<Peers>,
    /// Counts of the server for gateways, if there is one.
    pub(crate) picker_counts: OnceLock<Arc<kvatlas_epp::Counts>>,
    /// The recorder of spans, if the environment asks for them.
    pub(crate) spans: Option<Arc<Spans>>,
    /// The page that shows the router.
    pub(crate) page: Page,
    /// True if the router is about to end.
    pub(crate) leaving: AtomicBool,
}
