//! Actions that a machine wants done, their outcome, and the counts that it keeps.

/// Outcome of a batch that was to be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The batch was applied.
    Whole,
    /// The batch was applied, and the engine cleared everything in it: what was lost before does not matter any more.
    Cleared,
    /// The batch was applied, but for blocks stored that cannot be read.
    Partial,
    /// The batch was applied, but for events of a type that is not known here: they may have removed anything.
    UnknownEvents,
    /// Nothing of the batch was applied, because it may have removed something that cannot be read.
    Refused,
}

/// Actions that the machine wants done, at once and in this order.
pub trait Effects<P> {
    /// Apply a batch. `live`: it came as it was published.
    fn apply(&mut self, seq: u64, payload: &P, live: bool) -> Verdict;
    /// Forget all that was applied.
    fn clear(&mut self);
    /// Ask the replay socket for all batches from this number on. One question at a time.
    fn ask(&mut self, from: u64);
    /// Forget the question; answers to it must not come any more.
    fn cancel(&mut self);
    /// Drop the live connection with all that is still on its way, and make another.
    fn reconnect(&mut self);
}

/// Counts of what happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Gaps: how often batches were missing.
    pub gaps: u64,
    /// Missing batches recovered by a replay or a late arrival.
    pub recovered_batches: u64,
    /// Missing batches that could not be recovered, as far as their number is known.
    pub lost_batches: u64,
    /// Times that what was applied was cleared because a gap could not be filled.
    pub resets: u64,
    /// Batches received twice.
    pub duplicate_batches: u64,
    /// Live batches that did not fit into the buffer.
    pub overflowed_batches: u64,
    /// Replays requested.
    pub replays: u64,
    /// Replays that delivered nothing in time.
    pub failed_replays: u64,
    /// Replays that started at a later batch than requested.
    pub truncated_replays: u64,
    /// Connections re-established after a loss.
    pub reconnects: u64,
    /// Connections re-established without a replay socket to verify that the engine has not restarted.
    pub unverified_reconnects: u64,
    /// Times that batches of one connection contradicted each other.
    pub contradictions: u64,
    /// Connections of a publisher with the topic of one that was connected already.
    pub rivals: u64,
    /// Restarts of the engine that were noticed.
    pub epochs: u64,
}
