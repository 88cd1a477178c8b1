//! Library that follows inference engines: it reads the KV events that they publish, and keeps for each model an exact
//! index of the blocks that each engine holds. It uses ZMTP, ZeroMQ's protocol, to read from engines, and NATS to
//! exchange streams with other followers. It has no HTTP server; the service and the router add one.
//!
//! ```text
//! engine ──ZMQ──▶ stream ──▶ kvatlas_wire ──▶ state (keyspaces, kvatlas_index) ◀── lookup ◀── service, router
//!                   ▲                           ▲                                                  │
//!                   └────────── fleet ──────────┘ ◀───────────────── register ─────────────────────┘
//! ```
//!
//! A program starts a [`Follower`], registers engines with it, and queries the keyspaces (one index per model and
//! routing group) of its [`fleet`]. Streams run on separate threads, and look-ups take no lock, so that neither waits
//! for the other.
//!
//! Modules through which an event passes, beginning at the engine:
//!
//! * `stream`: one task for each rank of an engine. It subscribes to the engine's events, requests replays, fills gaps,
//!   and detects restarts and silence. [`kvatlas_stream`] has the protocol and the rules; `holdings` applies batches to
//!   the index.
//! * [`state`]: keyspaces with their indexes, and the status of each stream: trust, lag, counts.
//! * [`fleet`]: registered engines. It starts and ends streams, and reports when all are complete.
//! * [`lookup`]: ranks that hold leading blocks of a prompt, without those that are not trusted.
//!
//! Other modules:
//!
//! * [`config`] and [`StreamContext`]: settings, and the state that all streams of a follower share.
//! * [`register`] and [`allow`]: registrations in JSON, and the endpoints that may be followed.
//! * [`adopt`]: adoption of blocks that engines announced before they were followed, by means of prompts and answers.
//! * [`snapshot`]: held blocks that are saved for a restart, or taken over from another follower.
//! * `relay` and `relay_reader`: writing and reading of streams in a NATS log that followers share.
//! * [`sites`]: digests (summaries) of the indexes for a service above several sites, and the index of that service.
//! * `pool_files` and `pool_store`: scans of a pool's directory, and the keys and events of Mooncake's store.
//! * [`sources`]: the sources in which engines are found, such as the pods of a cluster, and the state of each.
//! * [`report`], [`metrics`] and [`page`]: the state of the fleet as JSON, for Prometheus, and for the web page.
//! * [`endpoint`], [`error`], [`limits`], [`log`]: used by all other modules.
//!
//! Folders use each other in one direction: see `tests/repository/test_imports_rust.py`.

#![forbid(unsafe_code)]

pub mod adopt;
pub mod allow;
pub mod config;
mod context;
mod counting;
pub mod endpoint;
pub mod error;
pub mod fleet;
mod follower;
mod lmcache;
pub mod log;
pub mod lookup;
pub mod metrics;
pub mod page;
mod pool_files;
mod pool_listings;
mod pool_store;
pub mod register;
mod relay;
mod relay_reader;
pub mod report;
pub mod sites;
pub mod snapshot;
pub mod sources;
pub mod state;
mod stream;

pub use config::{Config, RelayConfig};
pub use context::StreamContext;
pub use error::Error;
pub use follower::Follower;
pub use kvatlas_stream::limits;
pub use relay::Relay;
pub use state::PromptQueue;
