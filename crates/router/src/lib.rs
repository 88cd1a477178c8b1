//! The byte path of the router: clients on one side, engines on the other.
//!
//! ```text
//! client ──▶ kvatlas_http ──▶ server ─────────▶ dispatch ──▶ proxy ──▶ engine (pool, connection, health)
//!                                                │            ├─▶ prompts (text to tokens to hashes)
//!                                                │            └─▶ place (asks the index, or the service above sites, then the decision core)
//!                                                └─▶ admin, state, exposition, decisions
//! ```
//!
//! Imports go one way: `router` ▶ `server` ▶ `dispatch` ▶ `proxy`, `admin` ▶ `app` ▶ `place`, `prompts`, `peers` ▶ `fleet` ▶ `engine` ▶ `config`. What
//! `app` holds does not know it.

#![forbid(unsafe_code)]

mod admin;
mod answer;
mod answer_engines;
mod app;
mod aside;
mod asking;
mod cache_reports;
mod clock;
mod condition;
pub mod config;
mod control;
mod cors;
mod counts;
pub mod decisions;
mod dispatch;
mod encoding;
pub mod engine;
mod error;
mod exposition;
mod external_index;
mod fleet;
mod fleet_secret;
mod global;
mod health_check;
mod keeper_search;
mod learn;
mod log_budget;
mod media;
mod names;
mod observe;
mod peer_report;
mod peer_requests;
mod peer_work;
mod peers;
mod picked;
mod pictures;
mod place;
mod prompts;
mod proxy;
mod ranks;
mod reading;
mod reading_turns;
pub mod record;
mod refusal;
mod remote;
mod remote_service;
mod request_facts;
mod reserved;
mod reuse;
mod router;
mod routes;
mod salts;
mod server;
mod sessions;
mod state;
mod ui;
mod unread;

pub use config::Config;
pub use error::Error;
pub use prompts::prompt_tokens;
pub use router::Router;
