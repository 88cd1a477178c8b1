//! The index service, `kvatlas serve`: a [`Follower`](kvatlas_follow::Follower), which keeps the indexes, with an HTTP
//! server in front of it.
//!
//! [`Service`] starts both and ends them in order. Its HTTP server is `kvatlas_http`; this crate has the routes:
//! queries, registrations, dumps, snapshots, health, metrics, digests of sites, and the page. Requests are answered on threads
//! of their own, and queries read the indexes without a lock.
//!
//! * [`config`]: the section `http` of the settings; all others are the follower's.
//! * `service`: start and end.
//! * `http`: a file for each route or kind of routes, listed in its `mod.rs`.
//!
//! A router follows engines without this crate: it has a follower of its own.

#![forbid(unsafe_code)]

pub mod config;
mod http;
mod service;

pub use config::Config;
pub use service::Service;
