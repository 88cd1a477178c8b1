//! A question to the replay socket, and what its answer must have.

use std::time::Duration;

/// A question on its way.
#[derive(Debug)]
pub(in crate::machine) struct Question {
    pub(in crate::machine) from: u64,
    /// Batches that must be in the answer, by number and hash: one applied before, and one of the live connection.
    pub(in crate::machine) past: Option<(u64, u64)>,
    pub(in crate::machine) live: Option<(u64, u64)>,
    /// True if the question is to make a partial stream whole, which goes on meanwhile.
    pub(in crate::machine) heal: bool,
    pub(in crate::machine) answered: bool,
    /// The highest number known of when it was asked, and that of the answer.
    pub(in crate::machine) known: Option<u64>,
    pub(in crate::machine) highest: Option<u64>,
    /// True if the answer brought anything that was missing.
    pub(in crate::machine) useful: bool,
    pub(in crate::machine) deadline: Duration,
    /// Time at which the question ends, however much still comes.
    pub(in crate::machine) limit: Duration,
}

impl Question {
    /// True if there is nothing in the answer, now complete, and something must be. Of a longer one, which a full
    /// socket may have cut, only the beginning is certain.
    pub(in crate::machine) fn lacks_proof(&self) -> bool {
        !self.answered && (self.past.is_some() || self.live.is_some())
    }
}
