//! Life of the engine that the holdings, the live connection and the replay socket are of.
//!
//! Batches go on by number over a new connection, and an engine that has restarted counts like the one before. So after
//! a connection two things are to be proven: that the engine is the one whose batches are held, by the last batch before
//! the connection, and that the replay socket is that of the live connection, by a batch that came by it. Both are once
//! an answer has had them.

use std::time::Duration;

use super::{Effects, Machine, Rivalry, SOON};
use crate::Outcome;

#[derive(Debug, Default)]
pub(super) struct Life {
    /// The last batch before the present connection, by number and hash, until an answer had it.
    before: Option<(u64, u64)>,
    /// The last batch that came by the present connection.
    live: Option<(u64, u64)>,
    /// True if an answer had a batch of the present connection.
    same: bool,
}

impl Life {
    pub(super) fn connected(&mut self) {
        (self.live, self.same) = (None, false);
    }

    /// The present connection is to be proven once more, by a batch that comes from now on.
    pub(super) fn doubted(&mut self) {
        (self.live, self.same) = (None, false);
    }

    /// `last`: what was applied last.
    pub(super) fn disconnected(&mut self, last: Option<(u64, u64)>) {
        self.before = self.before.or(last);
        self.connected();
    }

    /// Notes that what is held is a snapshot's, whose last batch `mark` is.
    pub(super) fn restored(&mut self, mark: (u64, u64)) {
        self.before = Some(mark);
    }

    /// Notes that nothing is held any more.
    pub(super) fn cleared(&mut self) {
        self.before = None;
    }

    pub(super) fn before(&self) -> Option<(u64, u64)> {
        self.before
    }

    /// The batch of the present connection that an answer must have, if none of the connection was in one yet.
    pub(super) fn sample(&self) -> Option<(u64, u64)> {
        self.live.filter(|_| !self.same)
    }
}

impl<P: AsRef<[u8]>> Machine<P> {
    /// True if the engine may be another one than the one whose batches were applied.
    pub fn is_unproven(&self) -> bool {
        self.life.before.is_some() || self.life.sample().is_some()
    }

    /// A batch of the live connection was applied.
    pub(super) fn sampled(&mut self, now: Duration, seq: u64, hash: u64) {
        if !self.can_replay || self.life.same {
            return;
        }
        if self.life.live.replace((seq, hash)).is_none() {
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
                // Nothing may have come since that was to be proven anew.
                if self.life.live.is_some() {
                    self.life.same = true;
                    self.rivalry = Rivalry::None;
                }
            } else {
                self.life.before = self.life.before.filter(|before| *before != (seq, hash));
                self.unverified &= self.life.before.is_some();
                if self.life.before.is_none() {
                    self.restored.end(Outcome::Kept);
                }
            }
        }
        true
    }

    /// True if an answer begins behind what would prove that it follows the batches applied.
    pub(super) fn begins_late(&self, seq: u64, from: u64, past: Option<(u64, u64)>) -> bool {
        match past {
            Some(_) if self.life.before.is_some() => seq > from,
            Some(_) => self.last.is_some_and(|last| seq > last),
            None => seq > self.next(),
        }
    }
}

impl<P: AsRef<[u8]>> Machine<P> {
    pub(super) fn forget_all(&mut self, fx: &mut impl Effects<P>) {
        (self.last, self.unverified) = (None, false);
        self.end_restored(Outcome::Restarted);
        self.life.cleared();
        self.unknown_events.cleared();
        fx.clear();
    }
}
