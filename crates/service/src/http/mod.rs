//! Queries in, answers out.
//!
//! The dialect is the one that routers speak already; `docs/guides/service.md` lists routes, fields, error codes and
//! differences.
//!
//! ```text
//! server ──▶ connection (time limits) ──▶ dispatch (routes) ──▶ queries: query reads (json), found asks the index,
//!                                                              found_json answers (writer)
//!                                                           ──▶ register, workers, dump, health, exposition (counts),
//!                                                              page (what is looked at)
//! ```

mod access;
mod answer;
mod app;
mod body;
mod connection;
mod counts;
mod dispatch;
mod dump;
mod exposition;
mod format;
mod found;
mod found_json;
mod health;
mod json;
mod observed;
mod page;
mod places;
mod process;
mod queries;
mod query;
mod refusal;
mod register;
mod routes;
mod served;
mod server;
mod sites;
mod snapshot;
mod tls;
mod trace;
mod trust;
mod workers;
mod writer;

use std::sync::Arc;

pub(crate) use access::check_host;
pub(crate) use app::App;
pub(crate) use exposition::embedded as embedded_metrics;
pub use exposition::process as write_process_metrics;
pub use format::negotiated as negotiated_metrics;
pub(crate) use found::Filter;
pub(crate) use health::{engines, waiting};
pub(crate) use refusal::Refusal;
pub(crate) use register::{check_allowed, registration};
pub(crate) use routes::Access;
pub(crate) use served::rows as served_rows;
pub(crate) use server::Server;
pub(crate) use snapshot::snapshot;
pub(crate) use trust::Trust;
pub(crate) use workers::list as workers;

use crate::error::Error;

/// Starts to answer.
pub(crate) fn start(app: &Arc<App>) -> Result<Server, Error> {
    Server::start(app.clone())
}
