//! What every request may need.

use std::sync::Arc;

use kvatlas_http::{Front, Gate};
use tokio::sync::Semaphore;

use super::counts::Counts;
use super::health::Pulses;
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
    /// What the HTTP server has.
    pub(crate) front: Front,
    pub(crate) gate: Arc<Gate>,
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
    pub(crate) fn new(follower: Follower, config: HttpConfig, front: Front, sites: &SitesConfig) -> Arc<Self> {
        let (fleet, desk) = (follower.fleet().clone(), follower.desk.clone());
        Arc::new(Self {
            follower,
            fleet,
            counts: Arc::new(Counts::new()),
            pulses: Pulses::new(),
            gate: front.gate.clone(),
            front,
            config,
            desk,
            tops: Tops::new(sites.clone()),
            page: Page::default(),
            dumps: Arc::new(Semaphore::new(1)),
        })
    }
}
