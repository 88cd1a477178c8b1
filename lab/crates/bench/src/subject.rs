//! The interface of an index under test.

use kvatlas_designs::{Change, Scores, WorkerId};
use kvatlas_index::BlockHash;
use serde::Serialize;

/// The counts that an index gives of itself after a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Number of stores refused, mostly because the parent was not known.
    pub refused_stores: Option<u64>,
    /// Number of removals of blocks that were not held.
    pub unknown_removals: Option<u64>,
    /// Number of messages between the parts of a design that has several.
    pub messages: Option<u64>,
    /// Number of workers known.
    pub workers: Option<u64>,
    /// Number of pairs of a worker and a block that it holds.
    pub blocks: Option<u64>,
    /// Number of entries of the design's own kind: nodes, keys, positions.
    pub entries: Option<u64>,
    /// Number of calls that failed where none should (exceptions of an index written in Python).
    pub errors: u64,
    /// The first of these errors.
    pub first_error: Option<String>,
}

/// An index under test.
///
/// Messages and queries are made before the clock starts, each in memory of its own, as a decoder hands them to an
/// index. What an index does with them is on the clock: taking a message into its queue, freeing it, finding, and
/// freeing the answer.
pub trait Subject: Send + Sync + 'static {
    /// The form of an event that this index takes.
    type Message: Send + 'static;
    /// The form of a query that this index takes.
    type Query: Send + Sync + 'static;
    /// The state that a query thread keeps between lookups.
    type Lane: Send + 'static;

    /// Makes an event in the form that this index takes; off the clock.
    fn message(&self, change: Change) -> Self::Message;
    /// Makes a query in the form that this index takes; off the clock.
    fn query(&self, contents: &[u64]) -> Self::Query;
    /// Makes the state of a new query thread.
    fn lane(&self) -> Self::Lane;
    /// Takes an event and returns without waiting for it to be applied.
    fn send(&self, message: Self::Message);
    /// Number of events applied so far (refused ones included) of all that were sent. May lag behind, must never run
    /// ahead by more than the events that are being applied at the moment.
    fn applied(&self) -> u64;
    /// Returns when everything sent before has been applied. Called once [`applied`](Self::applied) has caught up.
    fn flush(&self);
    /// Looks up once, on the clock; the answer is made, and freed or kept for the next to overwrite.
    fn lookup(&self, lane: &mut Self::Lane, query: &Self::Query);
    /// Replaces `scores` by the index's answer; off the clock, after a flush.
    ///
    /// # Errors
    /// The message of the index, if it gave no answer.
    fn answer(&self, contents: &[u64], scores: &mut Scores) -> Result<(), String>;
    /// Every pair of a worker and a block that it holds, in any order, after a flush; `None` if the index cannot tell.
    fn holdings(&self) -> Option<Vec<(WorkerId, BlockHash)>>;
    /// The index's own counts, after a flush.
    fn counts(&self) -> Counts;
    /// Gives up the run: events that are queued need not be applied. Lookups may still be under way.
    fn give_up(&self) {}
}
