//! Event streams of inference engines in, answers over HTTP out.
//!
//! ```text
//! engine ──ZMQ──▶ stream ──▶ kvatlas_wire ──▶ state (keyspaces, kvatlas_index) ◀── http ◀── router
//!                   ▲                           ▲                                   │
//!                   └────────── fleet ──────────┘ ◀───────── registration ──────────┘
//! ```
//!
//! * [`state`]: keyspaces with their indexes, and what is known about each stream. Below all others.
//! * `stream`: a task for each engine rank: subscribes, replays, fills gaps, notices restarts and silence. In it:
//!   sockets ▶ transport ▶ task ▶ machine (decides) and holdings (apply).
//! * [`fleet`]: who is registered: starts and ends streams. Every registration goes through it.
//! * `follower`: all of that started and stopped in order, for a router in the same process or for `service`.
//! * `http`: queries, registration, health, metrics. Reads the index without a lock.
//!
//! * `adopt`: learns from prompts and answers what streams have not announced.
//! * [`shown`]: what a page shows of a fleet.
//! * `relay`: a log between this service and others; `reader` reads one.
//! * `zmtp`: ZeroMQ's protocol, of engines and of relays.
//! * [`sites`]: digests for a service above many sites, and that service's knowledge.
//! * [`snapshot`]: what is kept over a restart, or taken over from another service.
//!
//! Imports go one way: `service` ▶ `http` ▶ `follower` ▶ `shown` ▶ `adopt`, `sites` ▶ `reader` ▶ `fleet` ▶ `stream` ▶ `state` ▶ `relay` ▶ `zmtp` ▶ `config`, `endpoint`, `error`, `limits`,
//! `log`. Streams
//! and queries have threads of their own, so that neither waits for the other.

#![forbid(unsafe_code)]

mod adopt;
mod allow;
pub mod config;
pub mod endpoint;
pub mod error;
pub mod fleet;
mod follower;
mod http;
pub mod limits;
pub mod log;
pub mod lookup;
mod reader;
mod relay;
mod service;
pub mod shown;
pub mod sites;
pub mod snapshot;
pub mod state;
mod stream;
mod zmtp;

pub use adopt::Desk;
pub use config::Config;
pub use error::Error;
pub use follower::Follower;
pub use http::{negotiated_metrics, write_process_metrics};
pub use relay::{Relay, RelayConfig};
pub use service::Service;
