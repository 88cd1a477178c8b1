//! Decisions: which worker takes a request. No I/O, no threads, no clock of its own: callers say what time it is.
//!
//! A [`Policy`] picks one row of [`Candidates`] for a [`Request`]. What is behind a row is kept by the router: what it has
//! sent there, what came back, what the engine reports, how fast it has proved to be.
//!
//! | file | what |
//! |---|---|
//! | `error.rs`, `options.rs` | refusals; a policy's settings, read and checked in one place |
//! | `request.rs`, `candidates.rs` | what a policy is shown: a request, and a row for each worker and rank |
//! | `policy.rs` | [`Policy`], and what it answers |
//! | `policies/` | the policies of other routers, by their published formulas, and the plain ones |
//!
//! Imports go up this table only.

#![forbid(unsafe_code)]

mod candidates;
mod error;
mod options;
pub mod policies;
mod policy;
mod request;

pub use candidates::Candidates;
pub use error::Error;
pub use options::Options;
pub use policy::{Choice, Placed, Policy, Terms};
pub use request::Request;
