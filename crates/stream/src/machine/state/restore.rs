//! State of what a snapshot had of the stream: it is held, and the engine is to prove it before it is trusted.
//!
//! The engine proves it as after a lost connection: its first answer must begin with the marked batch. But nobody
//! watched the stream meanwhile, so a sequence number that follows proves nothing: without an answer, what was restored
//! is forgotten.

use crate::Outcome;

/// State of what a snapshot had of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::machine) enum RestoreState {
    /// A snapshot had nothing, or what became of it was told.
    #[default]
    Over,
    /// The snapshot's blocks are held, and not proved.
    Proving,
    /// This became of what the snapshot had, and is not told yet.
    Ended(Outcome),
}

impl RestoreState {
    /// Notes what became of what a snapshot had, if that was not known before.
    pub(in crate::machine) fn end(&mut self, outcome: Outcome) {
        if *self == Self::Proving {
            *self = Self::Ended(outcome);
        }
    }
}
