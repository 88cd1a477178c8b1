//! Router in front of inference engines: an HTTP server that forwards each client's request to the engine chosen for
//! it.
//!
//! | folder | contents |
//! |---|---|
//! | `config` | settings |
//! | `engines` | the engines: connections, health, models, the fleet |
//! | `answers` | bodies of answers, facts in engines' answers, refusals, responses stored by engines |
//! | `remote` | clients of other processes: an index, the service that indexes many sites, other routers |
//! | `spans` | spans of a request and its attempts at engines, for OpenTelemetry |
//! | `requests` | parsing of requests: route, body, prompt, session |
//! | `placing` | choice of the engine for each request, and the record of these decisions |
//! | `proxy` | forwarding of a request to an engine, and of the answer to the client |
//! | `picking` | choice of engines for requests that a gateway forwards |
//! | `reports` | metrics, the web page, the state as JSON, changes by operators |
//!
//! A folder uses only the folders above it in this table. Of the files beside the folders, `dispatch` receives requests
//! and finds the function that answers each one, `control` makes the periodic checks of the engines, and `app` has the
//! shared state.

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
