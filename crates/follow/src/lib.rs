//! A library that follows inference engines: it reads the events that they publish about their KV caches, and keeps for
//! each model an exact index of which engine holds which blocks. It speaks ZMTP with engines, and NATS with other
//! followers. It has no HTTP: the service and the router put that in front of it.
//!
//! ```text
//! engine ──ZMQ──▶ stream ──▶ kvatlas_wire ──▶ state (keyspaces, kvatlas_index) ◀── lookup ◀── service, router
//!                   ▲                           ▲                                                  │
//!                   └────────── fleet ──────────┘ ◀───────────────── register ─────────────────────┘
//! ```
//!
//! A program starts a [`Follower`], registers engines with it, and asks the keyspaces of its [`fleet`]. Streams run on
//! threads of the follower's own, and look-ups take no lock, so that neither waits for the other.
//!
//! The modules that an event passes, from the engine on:
//!
//! * `stream`: one task for each rank of an engine. It subscribes, asks for replays, fills gaps, and notices restarts and
//!   silence. [`kvatlas_stream`] has the protocol and the rules; `holdings`
//!   applies batches to the index.
//! * [`state`]: keyspaces with their indexes, and the status of each stream: trust, lag, counts.
//! * [`fleet`]: registered engines. It starts and ends streams, and says when all are complete.
//! * [`lookup`]: ranks that hold leading blocks of a prompt, without those that are not trusted.
//!
//! Modules beside that way:
//!
//! * [`config`] and [`StreamContext`]: settings, and the state that all streams of a follower share.
//! * [`register`] and [`allow`]: registrations in JSON, and which endpoints may be followed.
//! * [`adopt`]: blocks that engines announced before they were followed, adopted from prompts and answers.
//! * [`snapshot`]: holdings kept over a restart, or taken over from another follower.
//! * `relay` and `relay_reader`: a log in NATS between followers, written and read.
//! * [`sites`]: digests of the indexes for a service above many sites, and the index of that service.
//! * [`sources`]: where engines are found, such as the pods of a cluster: what is known of each source.
//! * [`report`], [`metrics`] and [`page`]: the state of the fleet as JSON, for Prometheus, and for the page.
//! * [`endpoint`], [`error`], [`limits`], [`log`]: used by all others.
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
