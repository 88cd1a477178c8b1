//! Queries in, answers out.
//!
//! The dialect is the one that routers speak already; `docs/guides/service.md` lists routes and differences,
//! `openapi.json` fields and error codes.
//!
//! ```text
//! kvatlas_http ──▶ server ──▶ dispatch (routes) ──▶ queries: query reads (json), kvatlas_follow looks up,
//!                                                              found_json answers (writer)
//!                                                           ──▶ register, dump, observed, sites, health, exposition (counts),
//!                                                              page (what is looked at)
//! ```

mod answer;
mod app;
mod counts;
mod dispatch;
mod dump;
mod exposition;
mod found_json;
mod health;
mod json;
mod observed;
mod page;
mod queries;
mod query;
mod refusal;
mod register;
mod routes;
mod server;
mod sites;
mod trace;
mod writer;

pub(crate) use app::App;
pub(crate) use server::start;
