//! Proofs that the engine has not restarted since the held blocks were announced.
//!
//! Over a new connection, sequence numbers continue, and an engine that has restarted numbers its batches like the one
//! before. So after a connection two facts have to be proved: that the engine is the one whose blocks are held, by the
//! last batch before the connection; and that the replay socket belongs to the engine on the live connection, by a
//! batch received over that connection. Each fact is proved when a replay answer contains the batch.
//!
//! Blocks restored from a snapshot are proved in the same way: the engine's first answer must begin with the last batch
//! covered by the snapshot. But the stream was not observed since the snapshot, so a matching sequence number proves
//! nothing; without an answer, the restored blocks are cleared.

use std::time::Duration;

use super::doubts::Rivalry;
use super::inputs::Goal;
use super::{Effects, Machine, SOON};
use crate::{Mark, Outcome, Skip};

/// Proofs so far that the connected engine is the one whose blocks are held.
#[derive(Debug, Default)]
pub(super) struct Life {
    /// Sequence number and hash of the last batch before the present connection; `None` once a replay answer has
    /// contained the batch.
    before: Option<(u64, u64)>,
    /// Sequence number and hash of the last batch received over the present connection; `None` before the first.
    live: Option<(u64, u64)>,
    /// True if a replay answer has contained a batch of the present connection.
    same: bool,
}

impl Life {
    pub(super) fn connected(&mut self) {
        (self.live, self.same) = (None, false);
    }

    /// Requires a new proof for the present connection, by a batch that is received from now on.
    pub(super) fn doubt(&mut self) {
        (self.live, self.same) = (None, false);
    }

    /// Records the loss of the connection to the engine. `last` is the sequence number and hash of the last applied
    /// batch.
    pub(super) fn disconnected(&mut self, last: Option<(u64, u64)>) {
        self.before = self.before.or(last);
        self.connected();
    }

    /// Records that held blocks were restored from a snapshot. `mark` is the sequence number and hash of the last batch
    /// covered by the snapshot.
    pub(super) fn restore(&mut self, mark: (u64, u64)) {
        self.before = Some(mark);
    }

    /// Records that the stream's held blocks were cleared, so that no earlier batch has to be proved.
    pub(super) fn clear(&mut self) {
        self.before = None;
    }

    pub(super) fn before(&self) -> Option<(u64, u64)> {
        self.before
    }

    /// Returns the sequence number and hash of a batch of the present connection that a replay answer must contain as
    /// proof; `None` if there is no such batch, or once a replay answer has contained one.
    pub(super) fn sample(&self) -> Option<(u64, u64)> {
        self.live.filter(|_| !self.same)
    }

    /// True if a replay answer has contained a batch of the present connection.
    pub(super) fn is_same(&self) -> bool {
        self.same
    }

    /// Records a batch of the present connection as the one to be proved. Returns true if it is the first one.
    pub(super) fn set_live(&mut self, seq: u64, hash: u64) -> bool {
        self.live.replace((seq, hash)).is_none()
    }

    /// Records that a replay answer contained a batch of the present connection. Returns false if no live batch has
    /// come since a new proof was required.
    pub(super) fn prove_live(&mut self) -> bool {
        self.same |= self.live.is_some();
        self.live.is_some()
    }

    /// Records that a replay answer contained the last batch from before the present connection.
    pub(super) fn prove_before(&mut self, seq: u64, hash: u64) {
        self.before = self.before.filter(|before| *before != (seq, hash));
    }
}

impl<P: AsRef<[u8]>> Machine<P> {
    /// True if the connected engine has not yet proved to be the one whose batches were applied.
    pub fn is_unproven(&self) -> bool {
        self.life.before().is_some() || self.life.sample().is_some()
    }

    /// Records an applied batch of the live connection. A replay answer that contains this batch proves that the replay
    /// socket belongs to the same engine.
    pub(super) fn note_sample(&mut self, now: Duration, seq: u64, hash: u64) {
        if !self.can_replay || self.life.is_same() {
            return;
        }
        if self.life.set_live(seq, hash) {
            let soon = now + SOON;
            self.probe_at = Some(self.probe_at.map_or(soon, |at| at.max(now).min(soon)));
        }
    }

    /// Compares a batch of a replay answer with the batch of this sequence number that the answer must contain as
    /// proof. Returns false if they differ.
    pub(super) fn is_proof(&mut self, seq: u64, hash: u64) -> bool {
        let Some(ask) = &mut self.ask else { return true };
        for (proof, is_live) in [(&mut ask.past, false), (&mut ask.live, true)] {
            let Some((_, expected)) = proof.take_if(|(number, _)| *number == seq) else { continue };
            if expected != hash {
                return false;
            }
            if is_live {
                if self.life.prove_live() {
                    self.rivalry = Rivalry::None;
                }
            } else {
                self.life.prove_before(seq, hash);
                self.unverified &= self.life.before().is_some();
                if self.life.before().is_none() {
                    self.restored.end(Outcome::Kept);
                }
            }
        }
        true
    }

    /// True if a replay answer that begins with batch `seq` begins too late to prove that its batches continue the
    /// applied ones.
    pub(super) fn begins_late(&self, seq: u64, from: u64, past: Option<(u64, u64)>) -> bool {
        match past {
            Some(_) if self.life.before().is_some() => seq > from,
            Some(_) => self.last.is_some_and(|last| seq > last),
            None => seq > self.next(),
        }
    }

    pub(super) fn forget_all(&mut self, fx: &mut impl Effects<P>) {
        (self.last, self.unverified) = (None, false);
        self.end_restored(Outcome::Restarted);
        self.life.clear();
        self.unknown_events.clear();
        fx.clear();
    }
}

/// Progress of proving that held blocks restored from a snapshot are still valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum RestoreState {
    /// No blocks were restored, or the outcome has been reported.
    #[default]
    Over,
    /// The restored blocks are held, but not yet proved to be the engine's.
    Proving,
    /// The proof has ended with this outcome, which has not been reported yet.
    Ended(Outcome),
}

impl RestoreState {
    /// Records the outcome of proving the restored blocks, if the proof is still in progress.
    pub(super) fn end(&mut self, outcome: Outcome) {
        if *self == Self::Proving {
            *self = Self::Ended(outcome);
        }
    }
}

impl<P: AsRef<[u8]>> Machine<P> {
    /// Initializes the machine for held blocks that were restored from a snapshot. `mark` identifies the last batch
    /// covered by the snapshot, `first` is the number of the first batch since the last clear, and `partial` is true if
    /// the engine may hold more blocks. Must be called before any input.
    pub fn restore(&mut self, mark: Mark, first: u64, partial: bool) {
        let Mark { seq, hash } = mark;
        self.recent.insert(seq, hash);
        self.life.restore((seq, hash));
        (self.last, self.first, self.partial, self.accounted) = (Some(seq), first, partial, seq.saturating_add(1));
        self.restored = RestoreState::Proving;
    }

    /// Returns the outcome of proving the blocks restored from a snapshot, once the outcome is known; later calls
    /// return `None`.
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

    /// Clears the blocks restored from a snapshot that cannot be proved, and continues as if no blocks had been
    /// restored.
    pub(super) fn give_restored_up(&mut self, fx: &mut impl Effects<P>) {
        if self.is_restoring() && self.goal == Goal::Verify {
            self.end_restored(Outcome::NoAnswer);
            self.forget_all(fx);
            self.goal = Goal::Whole;
        }
    }

    /// Returns the number and hash of the last applied batch, for a snapshot, if all held blocks are proved to have
    /// been announced since the engine's last restart.
    ///
    /// # Errors
    /// Reason to leave the stream out of a snapshot.
    pub fn mark(&self) -> Result<Mark, Skip> {
        let last = self.last.and_then(|seq| Some((seq, self.recent.hash(seq)?))).ok_or(Skip::Nothing)?;
        let is_doubtful = self.doubt.is_open() || self.unknown_events.is_open() || self.unverified;
        if is_doubtful || self.life.before().is_some_and(|before| before != last) {
            return Err(Skip::Unproven);
        }
        let (seq, hash) = last;
        Ok(Mark { seq, hash })
    }

    /// Returns the sequence number of the first batch applied since the last clear, and true if the engine may hold
    /// more blocks than are known.
    pub fn reach(&self) -> (u64, bool) {
        (self.first, self.partial)
    }
}
