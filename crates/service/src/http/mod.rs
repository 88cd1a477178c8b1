//! Queries in, answers out.
//!
//! The dialect is the one that routers speak already; `docs/guides/service.md` lists routes, fields, error codes and
//! differences. [`server`] has the threads, [`connection`] the time limits, [`route`] the paths; [`json`] and
//! [`query`] read, [`found`] asks the index, [`found_json`] writes.

mod answer;
mod body;
mod connection;
mod dump;
mod found;
mod found_json;
mod health;
mod json;
mod queries;
mod query;
mod refusal;
mod register;
mod route;
mod server;
mod tls;
mod workers;

use std::sync::Arc;
use std::thread::available_parallelism;

use tokio::sync::Semaphore;

pub(crate) use health::{Pulses, waiting};
pub(crate) use register::registration;
pub(crate) use route::Route;
pub(crate) use server::Server;
pub(crate) use workers::list as workers;

use crate::error::Error;
use crate::fleet::Fleet;
use crate::metrics::Metrics;
use crate::settings::HttpSettings;

/// What every request may need.
pub(crate) struct App {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) settings: HttpSettings,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) pulses: Pulses,
    /// For the one dump that may run at a time.
    dumps: Arc<Semaphore>,
}

impl App {
    pub(crate) fn new(fleet: Arc<Fleet>, settings: HttpSettings) -> Arc<Self> {
        let (metrics, dumps) = (Arc::new(Metrics::new()), Arc::new(Semaphore::new(1)));
        Arc::new(Self { fleet, settings, metrics, pulses: Pulses::new(), dumps })
    }

    /// How many threads answer.
    pub(crate) fn threads(&self) -> usize {
        match self.settings.threads {
            0 => available_parallelism().map_or(1, Into::into),
            threads => threads,
        }
    }
}

/// Starts to answer.
pub(crate) fn start(app: &Arc<App>) -> Result<Server, Error> {
    let tls = app.settings.tls.as_ref().map(tls::acceptor).transpose()?;
    Server::start(app.clone(), tls)
}
