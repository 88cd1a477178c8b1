//! An index in another process: that of the engines, or the service above sites if the "engines" are sites.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use kvatlas_follow::lookup::RankDepths;
use tokio_rustls::rustls::ClientConfig;

use crate::config::Config;
use crate::engines::fleet::EngineTable;
use crate::error::Error;
use crate::remote::index::RemoteIndex;
use crate::remote::service::Question;
use crate::remote::sites::{Bounds, SitesService};

/// Another process that says what engines hold.
pub(crate) enum ExternalIndex {
    /// An index of the engines.
    Index(Box<RemoteIndex>),
    /// The service above sites.
    Global(Arc<SitesService>),
}

/// The answer to a question about a prompt.
pub(crate) struct LookupResult {
    pub(crate) held: Vec<RankDepths>,
    /// The bounds that the service above sites gave for each of them.
    pub(crate) bounds: Option<Arc<Bounds>>,
}

impl ExternalIndex {
    /// The one that the configuration names, if it names one. `tls` checks its certificate.
    pub(crate) fn new(config: &Config, shards: usize, tls: &Arc<ClientConfig>) -> Result<Option<Self>, Error> {
        Ok(match (&config.index, &config.global_url) {
            (Some(url), _) => Some(Self::Index(Box::new(RemoteIndex::new(url, config, shards, tls)?))),
            (None, Some(url)) => Some(Self::Global(Arc::new(SitesService::new(url, config, shards, tls)?))),
            (None, None) => None,
        })
    }

    /// Shard of the connections for tasks that serve no requests.
    pub(crate) fn own_shard(&self) -> usize {
        match self {
            Self::Index(remote) => remote.own_shard,
            Self::Global(global) => global.own_shard,
        }
    }

    /// Returns the service above sites, if the index is one.
    pub(crate) fn global(&self) -> Option<&Arc<SitesService>> {
        match self {
            Self::Index(_) => None,
            Self::Global(global) => Some(global),
        }
    }

    /// Looks up the blocks of a prompt that these engines hold. None without a timely answer.
    pub(crate) async fn look_up(
        &self,
        shard: usize,
        question: Question<'_>,
        engines: &EngineTable,
    ) -> Option<LookupResult> {
        match self {
            Self::Index(remote) => {
                let number = |worker: &str, rank| engines.number(worker, rank);
                let told = remote.look_up(shard, question.model, question.hashes, number).await?;
                for engine in engines.iter().filter(|engine| engine.models.load().may_serve(Some(question.model))) {
                    engine.is_unverified.store(told.is_unverified(&engine.name), Relaxed);
                }
                Some(LookupResult { held: told.held, bounds: None })
            }
            Self::Global(global) => {
                let bounds = global.look_up(shard, question).await?;
                Some(LookupResult { held: bounds.held(engines, question.block_size), bounds: Some(bounds) })
            }
        }
    }
}
