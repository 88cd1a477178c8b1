//! Index service, `kvatlas serve`: a [`Follower`](kvatlas_follow::Follower), which reads engines' event streams and
//! keeps the indexes, with an HTTP server in front of it. The router does not use this crate; it has a follower of its
//! own.
//!
//! Routes are compatible with the queries of existing routers. `docs/guides/service.md` lists routes and differences,
//! `openapi.json` fields and error codes. Requests are answered on separate threads, and queries read the indexes
//! without a lock.
//!
//! ```text
//! kvatlas_http ──▶ server ──▶ dispatch (routes) ──▶ queries: query reads (json), kvatlas_follow looks up,
//!                                                              found_json answers (writer)
//!                                                           ──▶ register, dump, observed, sites, health, exposition (counts),
//!                                                              page
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`config`] | the section `http` of the settings; all other sections are the follower's |
//! | `service` | [`Service`]: start and end of the follower and the server |
//! | `app` | the state shared by all requests |
//! | `dispatch`, `routes` | the table of routes, and the call of each route's function |
//! | `query`, `json` | parsing of queries from bodies and parameters |
//! | `queries`, `found_json`, `trace` | look-ups and their answers |
//! | `answer` | bodies of answers, errors with their codes, and text appended to bodies |
//! | others | the routes by their names |

#![forbid(unsafe_code)]

mod answer;
mod app;
pub mod config;
mod dispatch;
mod dump;
mod exposition;
mod found_json;
mod health;
mod json;
mod page;
mod queries;
mod query;
mod register;
mod routes;
mod service;
mod sites;
mod trace;

pub use config::Config;
pub use service::Service;
