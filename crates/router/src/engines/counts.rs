//! Counts of what has happened with an engine.

use std::sync::atomic::{AtomicU64, AtomicUsize};

use super::fault::NAMES as FAULTS;

/// Counts of what has happened with an engine.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Answers by the first digit of their status, from 1 on.
    pub(crate) answers: [AtomicU64; 5],
    /// Requests that got no answer, or an error in place of one or at its end, by [`FAULTS`](super::FAULTS).
    pub(crate) faults: [AtomicU64; FAULTS.len()],
    /// Answers that broke off in the middle, or ended with an error.
    pub(crate) broken: AtomicU64,
    /// Requests that the client gave up.
    pub(crate) cancelled: AtomicU64,
    /// Requests there now.
    pub(crate) in_flight: AtomicUsize,
    /// Requests there now without a byte of an answer's body.
    pub(crate) waiting: AtomicUsize,
    /// Time at which a byte last came, or the first request came while there was none.
    pub(crate) last_byte: AtomicU64,
    /// Connections made.
    pub(crate) connections: AtomicU64,
    /// Answers about itself, and lines and entries of them, that were longer or more than is taken.
    pub(crate) oversized: AtomicU64,
    /// Number of times that the engine was left alone because of failures.
    pub(crate) opened: AtomicU64,
    /// Prompt tokens that the engine says it had cached, and prompt tokens of the same requests.
    pub(crate) cached_tokens: AtomicU64,
    pub(crate) prompt_tokens: AtomicU64,
    /// Tokens that the engine says it has generated.
    pub(crate) output_tokens: AtomicU64,
}
