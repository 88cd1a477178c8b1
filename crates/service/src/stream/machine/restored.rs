//! What a snapshot had of the stream is held, and is to be proved by the engine before it is trusted.
//!
//! It is as after a lost connection: the first answer must begin with the marked batch. Only that nobody was there
//! meanwhile, so that a number that follows is no proof at all: without an answer, what was restored is forgotten.

use super::goals::Goal;
use super::{Effects, Machine};
use crate::snapshot::{Mark, Outcome, Skip};

/// What became of what a snapshot had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Restored {
    /// There was nothing, or it was told.
    #[default]
    Over,
    /// It is held, and not proved.
    Proving,
    /// This became of it.
    Ended(Outcome),
}

impl Restored {
    /// It is known what became of it, if it was not before.
    pub(super) fn end(&mut self, outcome: Outcome) {
        if *self == Self::Proving {
            *self = Self::Ended(outcome);
        }
    }
}

impl<P: AsRef<[u8]>> Machine<P> {
    /// Begins with what a snapshot had, up to a batch. Nothing has happened yet.
    pub(crate) fn restore(&mut self, mark: Mark, first: u64, partial: bool) {
        let Mark { seq, hash } = mark;
        self.recent.insert(seq, hash);
        self.life.restored((seq, hash));
        (self.last, self.first, self.partial, self.accounted) = (Some(seq), first, partial, seq.saturating_add(1));
        self.restored = Restored::Proving;
    }

    /// What became of it, once.
    pub(crate) fn take_restored(&mut self) -> Option<Outcome> {
        let Restored::Ended(outcome) = self.restored else { return None };
        self.restored = Restored::Over;
        Some(outcome)
    }

    pub(super) fn is_restoring(&self) -> bool {
        self.restored == Restored::Proving
    }

    pub(super) fn end_restored(&mut self, outcome: Outcome) {
        self.restored.end(outcome);
    }

    /// Nobody can say whether it is the same engine: forgets what was restored, and goes on as if there had been nothing.
    pub(super) fn give_restored_up(&mut self, fx: &mut impl Effects<P>) {
        if self.is_restoring() && self.goal == Goal::Verify {
            self.end_restored(Outcome::NoAnswer);
            self.forget_all(fx);
            self.goal = Goal::Whole;
        }
    }

    /// The last batch that was applied, if all that is held is known to be of the life that it is of.
    pub(crate) fn mark(&self) -> Result<Mark, Skip> {
        let last = self.last.and_then(|seq| Some((seq, self.recent.hash(seq)?))).ok_or(Skip::Nothing)?;
        let is_doubtful = self.doubt.is_open() || self.strange.is_open() || self.unverified;
        if is_doubtful || self.life.before().is_some_and(|before| before != last) {
            return Err(Skip::Unproven);
        }
        let (seq, hash) = last;
        Ok(Mark { seq, hash })
    }

    /// The first batch applied since the last clear, and whether the engine may hold more than is known.
    pub(crate) fn reach(&self) -> (u64, bool) {
        (self.first, self.partial)
    }
}
