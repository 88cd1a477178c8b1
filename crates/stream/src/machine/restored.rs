//! Snapshots of a stream: trust in one that was restored, and the part of the stream that the next one may have.

use super::state::{Goal, RestoreState};
use super::{Effects, Machine};
use crate::{Mark, Outcome, Skip};

impl<P: AsRef<[u8]>> Machine<P> {
    /// Begins with what a snapshot had, up to a batch. Nothing has happened yet.
    pub fn restore(&mut self, mark: Mark, first: u64, partial: bool) {
        let Mark { seq, hash } = mark;
        self.recent.insert(seq, hash);
        self.life.restore((seq, hash));
        (self.last, self.first, self.partial, self.accounted) = (Some(seq), first, partial, seq.saturating_add(1));
        self.restored = RestoreState::Proving;
    }

    /// Returns what became of what a snapshot had, once.
    pub fn take_restored(&mut self) -> Option<Outcome> {
        let RestoreState::Ended(outcome) = self.restored else { return None };
        self.restored = RestoreState::Over;
        Some(outcome)
    }

    pub(super) fn is_restoring(&self) -> bool {
        self.restored == RestoreState::Proving
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
    pub fn mark(&self) -> Result<Mark, Skip> {
        let last = self.last.and_then(|seq| Some((seq, self.recent.hash(seq)?))).ok_or(Skip::Nothing)?;
        let is_doubtful = self.doubt.is_open() || self.unknown_events.is_open() || self.unverified;
        if is_doubtful || self.life.before().is_some_and(|before| before != last) {
            return Err(Skip::Unproven);
        }
        let (seq, hash) = last;
        Ok(Mark { seq, hash })
    }

    /// The first batch applied since the last clear, and whether the engine may hold more than is known.
    pub fn reach(&self) -> (u64, bool) {
        (self.first, self.partial)
    }
}
