//! Requests that are passed on: to which engine, in which words, how often, and what comes back.
//!
//! ```text
//! forward (reads the body) ──▶ job (asks `place`, tries again) ──▶ exchange ──▶ engine
//!                               ├─▶ headers (what an engine gets)             │
//!                               └─▶ answer_body (on its way; `flight` counts) ◀┘
//! ```

mod adapters;
mod answer_body;
mod attempts;
mod comments;
pub(crate) mod counts;
mod exchange;
mod fields;
mod flight;
mod forward;
mod handover;
mod headers;
mod hedging;
mod job;
mod leg;
mod log_budget;
mod token_bodies;
mod tokens;
mod usage;

pub(crate) use self::answer_body::{AnswerBody, BodyError};
pub(crate) use self::forward::{forward, read};
pub(crate) use self::handover::PREPARED;
pub(crate) use self::headers::{EngineRequest, REQUEST_ID};
pub(crate) use self::tokens::{RESULTS, Tokens};
