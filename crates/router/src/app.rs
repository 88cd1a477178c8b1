//! Shared state of a router, used by the handling of requests and by the reports.

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

/// Shared state of a router, used by the handling of requests and by the reports.
pub(crate) struct App {
    pub(crate) config: Arc<Config>,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) places: Arc<Places>,
    pub(crate) counts: Arc<Counts>,
    /// State of the router's HTTP server: settings, keys and limits.
    pub(crate) front: Front,
    pub(crate) gate: Arc<Gate>,
    pub(crate) reader: Arc<BodyReader>,
    pub(crate) proxy: Arc<Forwarder>,
    /// Follower of the engines' event streams, which feeds the index; None if this router does not follow events
    /// itself.
    pub(crate) follower: Option<Arc<Follower>>,
    /// Latest reports on the sources in which engines are discovered, such as the pods of a cluster.
    pub(crate) sources: Arc<Sources>,
    /// Client of an index in another process, which is queried for the blocks that engines hold; None if not
    /// configured.
    pub(crate) external_index: Option<Arc<ExternalIndex>>,
    /// Reporter to the index in another process: reports how many tokens of each prompt engines had cached. None if
    /// that index does not learn from engines' answers.
    pub(crate) cache_reporter: Option<Arc<CacheReporter>>,
    /// Channel for changes of the fleet, such as adding an engine, that clients request.
    pub(crate) changes: FleetChanges,
    /// Other routers in front of the same engines.
    pub(crate) peers: Arc<Peers>,
    /// Counts of the gRPC server for gateways; unset without this server.
    pub(crate) picker_counts: OnceLock<Arc<kvatlas_epp::Counts>>,
    /// Recorder of trace spans; None unless environment variables configure an export.
    pub(crate) spans: Option<Arc<Spans>>,
    /// State of the router's web page.
    pub(crate) page: Page,
    /// True if the router is shutting down.
    pub(crate) leaving: AtomicBool,
}
