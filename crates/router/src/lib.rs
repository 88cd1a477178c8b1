//! The router: clients on one side, engines on the other.
//!
//! | folder | what is in it |
//! |---|---|
//! | `config` | settings |
//! | `engines` | the engines: connections, health, models, the fleet |
//! | `answers` | bodies of answers, what engines' answers say of themselves, refusals, answers that engines keep |
//! | `remote` | other processes that are asked or told: an index, the service above sites, other routers |
//! | `spans` | spans of a request and its attempts at engines, for OpenTelemetry |
//! | `requests` | what a request asks: its route, body, prompt, session |
//! | `placing` | which engine gets a request, and the record of these decisions |
//! | `proxy` | a request on its way to an engine, and the answer on its way back |
//! | `picking` | engines for requests that a gateway forwards |
//! | `reports` | metrics, the page, the state as JSON, changes by operators |
//!
//! A folder uses those above it in this table, and none below. Of the files beside the folders, `dispatch` receives requests
//! and finds who answers each, `control` looks after the engines, and `app` holds the parts that they share.

#![forbid(unsafe_code)]

mod answers;
mod app;
mod clock;
pub mod config;
mod control;
mod counts;
mod dispatch;
mod engines;
mod error;
mod histogram;
mod ids;
mod keeper;
mod model_counts;
mod picking;
mod placing;
mod proxy;
mod remote;
mod reports;
mod requests;
mod router;
mod spans;

pub use config::Config;
pub use engines::DrainedBy;
pub use error::Error;
pub use keeper::{FleetAnswer, FleetKeeper, FleetRequest};
pub use kvatlas_http::inherited;
pub use requests::prompts::prompt_tokens;
pub use router::Router;
