//! State of what a snapshot had of the stream: it is held, and the engine is to prove it before it is trusted.
//!
//! It is as after a lost connection: the first answer must begin with the marked batch. Only that nobody was there
//! meanwhile, so that a number that follows is no proof at all: without an answer, what was restored is forgotten.

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
