//! The interface of an index under test.

use kvatlas_designs::{Change, Scores, WorkerId};
use kvatlas_index::BlockHash;
use serde::Serialize;

/// An index's own counts after a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Number of stores refused, mostly because of an unknown parent.
    pub refused_stores: Option<u64>,
    /// Number of removals of blocks that were not held.
    pub unknown_removals: Option<u64>,
    /// Number of messages between the parts of a design with several.
    pub messages: Option<u64>,
    /// Number of workers known.
    pub workers: Option<u64>,
    /// Number of pairs of a worker and a held block.
    pub blocks: Option<u64>,
    /// Number of entries of the design's own kind: nodes, keys, positions.
    pub entries: Option<u64>,
    /// Number of failed calls that should not fail (exceptions of an index written in Python).
    pub errors: u64,
    /// The first of these errors.
    pub first_error: Option<String>,
}

/// An index under test.
///
/// Messages and queries are made before the clock starts, each in memory of its own, as by a decoder. The index's own
/// work is on the clock: taking a message into its queue, freeing it, finding, and freeing the answer.
pub trait Subject: Send + Sync + 'static {
    /// The index's form of an event.
    type Message: Send + 'static;
    /// The index's form of a query.
    type Query: Send + Sync + 'static;
    /// The state that a query thread keeps between lookups.
    type Lane: Send + 'static;

    /// Converts an event to the index's form; off the clock.
    fn message(&self, change: Change) -> Self::Message;
    /// Converts a query to the index's form; off the clock.
    fn query(&self, contents: &[u64]) -> Self::Query;
    /// Makes the state of a new query thread.
    fn lane(&self) -> Self::Lane;
    /// Sends an event, without waiting for it to be applied.
    fn send(&self, message: Self::Message);
    /// Number of events applied so far (refused ones included). May lag behind, but not run ahead by more than the
    /// events being applied at the moment.
    fn applied(&self) -> u64;
    /// Returns once all earlier events have been applied. Called after [`applied`](Self::applied) has caught up.
    fn flush(&self);
    /// Looks up once, on the clock; the answer is made, and freed or kept for the next lookup to overwrite.
    fn lookup(&self, lane: &mut Self::Lane, query: &Self::Query);
    /// Replaces `scores` by the index's answer; off the clock, after a flush.
    ///
    /// # Errors
    /// The index's error message, if it gave no answer.
    fn answer(&self, contents: &[u64], scores: &mut Scores) -> Result<(), String>;
    /// Every pair of a worker and a held block, in any order, after a flush; `None` if the index cannot list them.
    fn holdings(&self) -> Option<Vec<(WorkerId, BlockHash)>>;
    /// The index's own counts, after a flush.
    fn counts(&self) -> Counts;
    /// Gives up the run: queued events need not be applied. Lookups may still be running.
    fn give_up(&self) {}
}
