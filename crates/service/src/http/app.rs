//! What every request may need.

use std::sync::Arc;
use std::thread::available_parallelism;

use tokio::sync::Semaphore;

use super::access::Hosts;
use super::counts::Counts;
use super::health::Pulses;
use super::places::Places;
use super::routes::Door;
use super::trust::Trust;
use crate::adopt::Desk;
use crate::allow::Allow;
use crate::config::HttpConfig;
use crate::error::Error;
use crate::fleet::Fleet;
use crate::shown::Page;
use crate::sites::{SitesConfig, Tops};

/// What every request may need.
pub(crate) struct App {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) config: HttpConfig,
    pub(crate) counts: Arc<Counts>,
    pub(crate) pulses: Pulses,
    pub(crate) trust: Arc<Trust>,
    /// Of the connections that all routes are for.
    pub(crate) places: Arc<Places>,
    /// Which endpoints may be registered.
    pub(crate) allow: Allow,
    /// Where prompts are left that may tell what was never announced.
    pub(crate) desk: Arc<Desk>,
    /// What is known of many sites.
    pub(crate) tops: Tops,
    /// What the page shows.
    pub(crate) page: Page,
    /// For the one dump that may run at a time.
    pub(super) dumps: Arc<Semaphore>,
}

impl App {
    pub(crate) fn new(
        fleet: Arc<Fleet>,
        config: HttpConfig,
        allow: &[String],
        desk: Arc<Desk>,
        sites: &SitesConfig,
    ) -> Result<Arc<Self>, Error> {
        let (counts, dumps) = (Arc::new(Counts::new()), Arc::new(Semaphore::new(1)));
        let trust = Arc::new(Trust::new(&config, &["http/1.1"])?);
        let places = Places::new(config.max_connections);
        let allow = Allow::new(allow, !trust.keys().asked_for_changes())?;
        Ok(Arc::new(Self {
            fleet,
            config,
            counts,
            pulses: Pulses::new(),
            trust,
            places,
            allow,
            desk,
            tops: Tops::new(sites.clone()),
            page: Page::default(),
            dumps,
        }))
    }

    /// The hosts that requests may name.
    pub(crate) fn hosts(&self, door: Door) -> Hosts {
        match (door, self.config.admin_bind) {
            (Door::Main, _) => Hosts::at(self.config.bind, self.trust.keys().asked_for(), &self.config.hosts),
            (Door::Admin, Some(at)) if at.ip().is_loopback() => Hosts::Own,
            (Door::Admin, _) => Hosts::Any,
        }
    }

    /// How many threads answer.
    pub(crate) fn threads(&self) -> usize {
        match self.config.threads {
            0 => available_parallelism().map_or(1, Into::into),
            threads => threads,
        }
    }
}
