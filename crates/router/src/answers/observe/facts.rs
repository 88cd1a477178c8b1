//! The facts that an answer says of itself.

use super::failure::Failure;
use super::stop::Stop;
use super::usage::Usage;

/// The facts that an answer was seen to say of itself.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AnswerFacts {
    pub(crate) usage: Usage,
    /// Events of a stream from the first one that carries a token.
    pub(crate) events: u32,
    /// True if the answer said why it ended.
    pub(crate) finished: bool,
    /// The reason for which it ended, if it said one that is known.
    pub(crate) stop: Option<Stop>,
    /// The error that it is, or ends with.
    pub(crate) failure: Option<Failure>,
    /// True if the answer is over by its own account.
    pub(crate) over: bool,
}
