//! Queries in, answers out.
//!
//! The dialect is the one that routers speak already; `docs/guides/service.md` lists routes, fields, error codes and
//! differences.
//!
//! ```text
//! kvatlas_http ──▶ server ──▶ dispatch (routes) ──▶ queries: query reads (json), found asks the index,
//!                                                              found_json answers (writer)
//!                                                           ──▶ register, workers, dump, health, exposition (counts),
//!                                                              page (what is looked at)
//! ```

mod answer;
mod app;
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
mod trace;
mod workers;
mod writer;

pub(crate) use app::App;
pub(crate) use exposition::embedded as embedded_metrics;
pub use exposition::process as write_process_metrics;
pub use format::negotiated as negotiated_metrics;
pub(crate) use found::Filter;
pub(crate) use health::{engines, waiting};
pub(crate) use register::{check_allowed, registration};
pub(crate) use served::rows as served_rows;
pub(crate) use server::start;
pub(crate) use snapshot::snapshot;
pub(crate) use workers::list as workers;
