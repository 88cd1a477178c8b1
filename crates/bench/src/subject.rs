//! What a run asks of an index.

use kvatlas_designs::{Change, Scores, WorkerId};
use kvatlas_index::BlockHash;
use serde::Serialize;

/// What an index says of itself after a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Stores refused, mostly because the parent was not known.
    pub refused_stores: Option<u64>,
    /// Removals of blocks that were not held.
    pub unknown_removals: Option<u64>,
    /// Messages between the parts of a design that has several.
    pub messages: Option<u64>,
    /// Workers known.
    pub workers: Option<u64>,
    /// Pairs of a worker and a block that it holds.
    pub blocks: Option<u64>,
    /// Entries of the design's own kind: nodes, keys, positions.
    pub entries: Option<u64>,
    /// Calls that failed where none should (exceptions of an index written in Python).
    pub errors: u64,
    /// The first of them.
    pub first_error: Option<String>,
}

/// An index under test.
///
/// Messages and queries are made before the clock starts, each in memory of its own, as a decoder hands them to an
/// index. What an index does with them is on the clock: taking a message into its queue, freeing it, finding, and
/// freeing the answer.
pub trait Subject: Send + Sync + 'static {
    /// An event, as this index takes it.
    type Message: Send + 'static;
    /// A query, as this index takes it.
    type Query: Send + Sync + 'static;
    /// What a query thread keeps between lookups.
    type Lane: Send + 'static;

    /// An event as this index takes it; off the clock.
    fn message(&self, change: Change) -> Self::Message;
    /// A query as this index takes it; off the clock.
    fn query(&self, contents: &[u64]) -> Self::Query;
    /// For a new query thread.
    fn lane(&self) -> Self::Lane;
    /// Takes an event and returns without waiting for it to be applied.
    fn send(&self, message: Self::Message);
    /// Events applied so far (refused ones included) of all that were sent. May lag behind, must never run ahead by
    /// more than the events that are being applied at the moment.
    fn applied(&self) -> u64;
    /// Returns when everything sent before has been applied. Called once [`applied`](Self::applied) has caught up.
    fn flush(&self);
    /// One lookup, on the clock; the answer is made, and freed or kept for the next to overwrite.
    fn lookup(&self, lane: &mut Self::Lane, query: &Self::Query);
    /// Replaces `scores` by what the index answers; off the clock, after a flush.
    ///
    /// # Errors
    /// What the index said instead.
    fn answer(&self, contents: &[u64], scores: &mut Scores) -> Result<(), String>;
    /// Everything held, in any order, after a flush; `None` if the index cannot tell.
    fn holdings(&self) -> Option<Vec<(WorkerId, BlockHash)>>;
    /// What the index says of itself, after a flush.
    fn counts(&self) -> Counts;
    /// The run was given up: what is queued need not be applied. Lookups may still be under way.
    fn give_up(&self) {}
}
