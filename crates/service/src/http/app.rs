//! What every request may need.

use std::sync::Arc;
use std::thread::available_parallelism;

use tokio::sync::Semaphore;

use super::counts::Counts;
use super::health::Pulses;
use super::places::Places;
use super::routes::Door;
use super::trust::Trust;
use crate::adopt::Desk;
use crate::config::HttpConfig;
use crate::fleet::Fleet;
use crate::follower::Follower;
use crate::shown::Page;
use crate::sites::{SitesConfig, Tops};

/// What every request may need.
pub(crate) struct App {
    /// Who follows the engines' events.
    pub(crate) follower: Follower,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) config: HttpConfig,
    pub(crate) counts: Arc<Counts>,
    pub(crate) pulses: Pulses,
    pub(crate) trust: Arc<Trust>,
    /// Of the connections that all routes are for.
    pub(crate) places: Arc<Places>,
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
    pub(crate) fn new(follower: Follower, config: HttpConfig, trust: Arc<Trust>, sites: &SitesConfig) -> Arc<Self> {
        let (fleet, desk) = (follower.fleet().clone(), follower.desk.clone());
        Arc::new(Self {
            follower,
            fleet,
            counts: Arc::new(Counts::new()),
            pulses: Pulses::new(),
            trust,
            places: Places::new(config.max_connections),
            config,
            desk,
            tops: Tops::new(sites.clone()),
            page: Page::default(),
            dumps: Arc::new(Semaphore::new(1)),
        })
    }

    /// Whether requests must name this machine: nothing else keeps other people's web pages out.
    pub(crate) fn checks_hosts(&self, door: Door) -> bool {
        match door {
            Door::Main => self.config.bind.ip().is_loopback() && !self.trust.keys().asked_for(),
            Door::Admin => self.config.admin_bind.is_some_and(|at| at.ip().is_loopback()),
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
