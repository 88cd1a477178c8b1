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

mod answers;
mod app;
mod clock;
pub mod config;
mod control;
mod dispatch;
mod engines;
mod error;
mod ids;
mod placing;
mod proxy;
mod remote;
mod reports;
mod requests;
mod router;
mod server;

pub use config::Config;
pub use error::Error;
pub use requests::prompts::prompt_tokens;
pub use router::Router;
