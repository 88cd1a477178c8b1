//! A library that follows inference engines: it reads the events that they publish about their KV caches, and keeps for
//! each model an exact index of which engine holds which blocks. It speaks ZMTP with engines, and NATS or ZMTP with other
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
//! * [`state`]: keyspaces with their indexes, and what is known of each stream: whether it is trusted, how far it is behind.
//! * [`fleet`]: registered engines. It starts and ends streams, and says when all are complete.
//! * [`lookup`]: which ranks hold how much of a prompt, without those that are not trusted.
//!
//! Modules beside that way:
//!
//! * [`config`] and [`StreamContext`]: settings, and what the streams of one follower share.
//! * [`register`] and [`allow`]: registrations in JSON, and which endpoints may be followed.
//! * [`adopt`]: blocks that engines announced before they were followed, learnt from prompts and answers.
//! * [`snapshot`]: what the indexes hold, kept over a restart or taken over from another follower.
//! * `relay` and `reader`: a log between followers, written and read.
//! * [`sites`]: digests of the indexes for a service above many sites, and what that service knows.
//! * [`report`], [`metrics`] and [`shown`]: the state of the fleet as JSON, for Prometheus, and for the page.
//! * [`endpoint`], [`error`], [`limits`], [`log`]: small things that all others use.
//!
//! Files use each other in one direction: see `tests/repository/test_imports_rust.py`.

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
pub mod log;
pub mod lookup;
pub mod metrics;
mod reader;
pub mod register;
mod relay;
pub mod report;
pub mod shown;
pub mod sites;
pub mod snapshot;
pub mod state;
mod stream;

pub use adopt::PromptQueue;
pub use config::Config;
pub use context::StreamContext;
pub use error::Error;
pub use follower::Follower;
pub use kvatlas_stream::limits;
pub use relay::{Relay, RelayConfig};
