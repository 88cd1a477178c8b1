//! Proof that the engine is the one whose batches are held.

use std::time::Duration;

use super::config::SOON;
use super::state::Rivalry;
use super::{Effects, Machine};
use crate::Outcome;

impl<P: AsRef<[u8]>> Machine<P> {
    /// True if the engine may be another one than the one whose batches were applied.
    pub fn is_unproven(&self) -> bool {
        self.life.before().is_some() || self.life.sample().is_some()
    }

    /// A batch of the live connection was applied.
    pub(super) fn note_sample(&mut self, now: Duration, seq: u64, hash: u64) {
        if !self.can_replay || self.life.is_same() {
            return;
        }
        if self.life.set_live(seq, hash) {
            let soon = now + SOON;
            self.probe_at = Some(self.probe_at.map_or(soon, |at| at.max(now).min(soon)));
        }
    }

    /// Compares a batch of the answer with those that must be in it. False if it is another one.
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

    /// True if an answer begins behind what would prove that it follows the batches applied.
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
