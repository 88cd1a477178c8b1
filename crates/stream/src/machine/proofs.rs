//! Proofs that the engine is still in the same life as when the held blocks were announced.
//!
//! Sequence numbers continue over a new connection, and an engine that has restarted counts like the one before. So
//! after a connection two things have to be proved: that the engine is the one whose batches are held, by the last
//! batch before the connection; and that the replay socket belongs to the live connection, by a batch that came over
//! it. Each is proved once an answer of the replay socket contains that batch.
//!
//! Holdings restored from a snapshot are proved in the same way: the engine's first answer must begin with the batch at
//! the snapshot's mark. But the stream was not watched meanwhile, so a sequence number that follows proves nothing:
//! without an answer, the restored holdings are cleared.

use std::time::Duration;

use super::doubts::Rivalry;
use super::inputs::Goal;
use super::{Effects, Machine, SOON};
use crate::{Mark, Outcome, Skip};

/// Proofs, so far, that the engine is the one whose blocks are held.
#[derive(Debug, Default)]
pub(super) struct Life {
    /// Last batch before the present connection, by number and hash; `None` once an answer has contained it.
    before: Option<(u64, u64)>,
    /// Last batch that came over the present connection, by number and hash; `None` before the first.
    live: Option<(u64, u64)>,
    /// True if an answer contained a batch of the present connection.
    same: bool,
}

impl Life {
    pub(super) fn connected(&mut self) {
        (self.live, self.same) = (None, false);
    }

    /// Demands another proof of the present connection, by a batch that comes from now on.
    pub(super) fn doubt(&mut self) {
        (self.live, self.same) = (None, false);
    }

    /// Records the loss of the connection. `last`: last applied batch, by number and hash.
    pub(super) fn disconnected(&mut self, last: Option<(u64, u64)>) {
        self.before = self.before.or(last);
        self.connected();
    }

    /// Records that the holdings were restored from a snapshot, whose last batch is `mark`, by number and hash.
    pub(super) fn restore(&mut self, mark: (u64, u64)) {
        self.before = Some(mark);
    }

    /// Records that the stream's holdings were cleared.
    pub(super) fn clear(&mut self) {
        self.before = None;
    }

    pub(super) fn before(&self) -> Option<(u64, u64)> {
        self.before
    }

    /// Batch of the present connection, by number and hash, that an answer must contain; `None` once one has.
    pub(super) fn sample(&self) -> Option<(u64, u64)> {
        self.live.filter(|_| !self.same)
    }

    /// True if an answer contained a batch of the present connection.
    pub(super) fn is_same(&self) -> bool {
        self.same
    }

    /// Records a batch of the present connection. True if it is the first one.
    pub(super) fn set_live(&mut self, seq: u64, hash: u64) -> bool {
        self.live.replace((seq, hash)).is_none()
    }

    /// Records that an answer contained a batch of the present connection. False if no live batch has come since a new
    /// proof was demanded.
    pub(super) fn prove_live(&mut self) -> bool {
        self.same |= self.live.is_some();
        self.live.is_some()
    }

    /// Records that an answer contained a batch from before the present connection.
    pub(super) fn prove_before(&mut self, seq: u64, hash: u64) {
        self.before = self.before.filter(|before| *before != (seq, hash));
    }
}

impl<P: AsRef<[u8]>> Machine<P> {
    /// True if the engine has not yet proved to be the one whose batches were applied.
    pub fn is_unproven(&self) -> bool {
        self.life.before().is_some() || self.life.sample().is_some()
    }

    /// Records an applied batch of the live connection, by which the replay socket can be proved to belong to the same
    /// engine.
    pub(super) fn note_sample(&mut self, now: Duration, seq: u64, hash: u64) {
        if !self.can_replay || self.life.is_same() {
            return;
        }
        if self.life.set_live(seq, hash) {
            let soon = now + SOON;
            self.probe_at = Some(self.probe_at.map_or(soon, |at| at.max(now).min(soon)));
        }
    }

    /// Compares a batch of an answer with the batch of this number that the answer must contain. False if they differ.
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

    /// True if an answer that begins with batch `seq` begins too late to prove that it follows the applied batches.
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

/// State of the proof of holdings restored from a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum RestoreState {
    /// Nothing was restored, or the outcome was reported.
    #[default]
    Over,
    /// The restored blocks are held, but not yet proved.
    Proving,
    /// The proof has ended with this outcome, which is not yet reported.
    Ended(Outcome),
}

impl RestoreState {
    /// Records the outcome of the proof, unless it has ended already.
    pub(super) fn end(&mut self, outcome: Outcome) {
        if *self == Self::Proving {
            *self = Self::Ended(outcome);
        }
    }
}

impl<P: AsRef<[u8]>> Machine<P> {
    /// Begins with holdings restored from a snapshot, up to the batch `mark`. `first`: first batch since the last
    /// clear; `partial`: whether the engine may hold more. Must be called before any input.
    pub fn restore(&mut self, mark: Mark, first: u64, partial: bool) {
        let Mark { seq, hash } = mark;
        self.recent.insert(seq, hash);
        self.life.restore((seq, hash));
        (self.last, self.first, self.partial, self.accounted) = (Some(seq), first, partial, seq.saturating_add(1));
        self.restored = RestoreState::Proving;
    }

    /// Takes the outcome of the restored holdings, once it is known; later calls return `None`.
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

    /// Clears restored holdings that cannot be proved, and continues as if nothing had been restored.
    pub(super) fn give_restored_up(&mut self, fx: &mut impl Effects<P>) {
        if self.is_restoring() && self.goal == Goal::Verify {
            self.end_restored(Outcome::NoAnswer);
            self.forget_all(fx);
            self.goal = Goal::Whole;
        }
    }

    /// Last applied batch, if all holdings are proved to belong to the same life of the engine; else the reason to skip
    /// the stream in a snapshot.
    pub fn mark(&self) -> Result<Mark, Skip> {
        let last = self.last.and_then(|seq| Some((seq, self.recent.hash(seq)?))).ok_or(Skip::Nothing)?;
        let is_doubtful = self.doubt.is_open() || self.unknown_events.is_open() || self.unverified;
        if is_doubtful || self.life.before().is_some_and(|before| before != last) {
            return Err(Skip::Unproven);
        }
        let (seq, hash) = last;
        Ok(Mark { seq, hash })
    }

    /// Number of the first batch applied since the last clear, and whether the engine may hold more than is known.
    pub fn reach(&self) -> (u64, bool) {
        (self.first, self.partial)
    }
}
