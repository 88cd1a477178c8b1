//! Goal of a stream: what it wants next.

/// Goal of a stream: what it wants next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::machine) enum Goal {
    /// A live connection.
    Connect,
    /// Proof that the engine is still the one whose batches were applied.
    Verify,
    /// Everything that the replay socket has.
    Whole,
    /// The batches between the last one and those that wait.
    Gap,
    /// Nothing: batches are applied as they come.
    Live,
    /// A sign of life.
    Stale,
}
