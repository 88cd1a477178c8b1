//! State of the service that is shared by all requests.

use std::sync::Arc;

use kvatlas_http::{Front, Gate};
use tokio::sync::Semaphore;

use crate::config::UntrustedPolicy;
use crate::exposition::Counts;
use crate::health::Pulses;
use kvatlas_follow::Follower;
use kvatlas_follow::fleet::Fleet;
use kvatlas_follow::page::Page;

/// State of the service that is shared by all requests.
pub(crate) struct App {
    /// Follower, which reads the engines' event streams and keeps the indexes.
    pub(crate) follower: Follower,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) untrusted: UntrustedPolicy,
    pub(crate) counts: Arc<Counts>,
    pub(crate) pulses: Pulses,
    /// Settings, keys and reusable memory of the HTTP server.
    pub(crate) front: Front,
    pub(crate) gate: Arc<Gate>,
    /// Data of the service's web page.
    pub(crate) page: Page,
    /// Semaphore that allows one dump of the indexes at a time.
    pub(crate) dumps: Arc<Semaphore>,
    /// True if the next registration or dump must panic, for tests of internal errors.
    #[cfg(test)]
    pub(crate) fail: std::sync::atomic::AtomicBool,
}

impl App {
    pub(crate) fn new(follower: Follower, untrusted: UntrustedPolicy, front: Front) -> Arc<Self> {
        let fleet = follower.fleet().clone();
        Arc::new(Self {
            follower,
            fleet,
            counts: Arc::new(Counts::new()),
            pulses: Pulses::new(),
            gate: front.gate.clone(),
            front,
            untrusted,
            page: Page::default(),
            dumps: Arc::new(Semaphore::new(1)),
            #[cfg(test)]
            fail: std::sync::atomic::AtomicBool::new(false),
        })
    }
}
