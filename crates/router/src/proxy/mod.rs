//! Requests that are passed on: to which engine, in which words, how often, and what comes back.
//!
//! ```text
//! forward (reads the body, asks `place`, tries again) ──▶ headers (what an engine gets) ──▶ engine
//!                                                     ◀── passing (the answer on its way) ── flight (what is counted)
//! ```

mod attempts;
mod exchange;
mod flight;
mod forward;
mod handover;
mod headers;
mod passing;
mod tokens;
mod usage;

pub(crate) use self::attempts::GIVEN_UP;
pub(crate) use self::forward::{forward, read};
pub(crate) use self::handover::PREPARED;
pub(crate) use self::headers::REQUEST_ID;
pub(crate) use self::passing::Passing;
pub(crate) use self::tokens::{RESULTS, Tokens};
