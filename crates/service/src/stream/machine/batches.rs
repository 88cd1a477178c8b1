//! Where a batch belongs: applied now, kept for later, dropped as known, or the first of another epoch.

use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use super::goals::Goal;
use super::{Effects, Machine};

impl<P: AsRef<[u8]>> Machine<P> {
    /// Finds a batch its place: now, later, or another epoch.
    pub(super) fn place(&mut self, now: Duration, seq: u64, payload: P, fx: &mut impl Effects<P>) {
        let new_here = self.highest.is_none_or(|highest| seq > highest);
        if new_here {
            self.highest = Some(seq);
        }
        if self.last.is_some_and(|last| seq <= last) {
            let known = self.recent.hash(seq);
            if self.same_as_applied(seq, &payload) {
                self.counts.duplicate_batches += u64::from(!new_here);
            } else if known.is_none() && new_here && self.goal != Goal::Verify {
                // A replay was ahead of the live socket.
            } else if known.is_none() && self.can_ask() && self.goal != Goal::Verify {
                self.wait(seq, payload);
                self.verify(now, fx);
            } else {
                self.new_epoch(fx);
                self.read_whole(now, fx);
                self.place(now, seq, payload, fx);
            }
        } else if seq == self.next() || self.open {
            self.counts.recovered_batches += u64::from(self.goal == Goal::Gap);
            self.apply(seq, &payload, true, fx);
            self.drain(now, fx);
        } else {
            self.wait(seq, payload);
            self.missing(now, fx);
        }
    }

    /// Applies what waits and has its turn. What is left shows a gap.
    pub(super) fn drain(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        while let Some(seq) = self.waiting.first().filter(|seq| *seq <= self.next() || self.open) {
            let Some((_, payload)) = self.waiting.pop_first() else { break };
            if self.last.is_none_or(|last| seq > last) {
                self.apply(seq, &payload, true, fx);
            } else if self.recent.hash(seq).is_some() && !self.same_as_applied(seq, &payload) {
                self.new_epoch(fx);
                self.read_whole(now, fx);
                return self.place(now, seq, payload, fx);
            }
        }
        if !self.waiting.is_empty() {
            self.missing(now, fx);
        } else if self.goal == Goal::Gap {
            self.go_live(now);
        }
    }

    /// Something waits for a batch that has not come.
    pub(super) fn missing(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        if self.goal != Goal::Live {
            return;
        }
        self.goal = Goal::Gap;
        self.counts.gaps += 1;
        self.attempts = 0;
        if !self.can_ask() {
            self.ask_at = Some(now + self.config.reorder_grace);
        } else if self.ask.as_ref().is_none_or(|ask| !ask.answered) {
            self.ask_for_goal(now, fx);
        }
    }

    pub(super) fn apply(&mut self, seq: u64, payload: &P, live: bool, fx: &mut impl Effects<P>) {
        if self.last.is_none() {
            self.first = seq;
            self.partial &= seq > 0;
        }
        self.open = false;
        self.last = Some(seq);
        self.recent.insert(seq, xxh3_64(payload.as_ref()));
        fx.apply(seq, payload, live);
    }

    pub(super) fn wait(&mut self, seq: u64, payload: P) {
        let forgotten = self.waiting.insert(seq, payload);
        self.counts.overflowed_batches += forgotten;
        self.forgot |= forgotten > 0;
    }

    pub(super) fn next(&self) -> u64 {
        self.last.map_or(0, |last| last.saturating_add(1))
    }

    pub(super) fn same_as_applied(&self, seq: u64, payload: &P) -> bool {
        self.recent.hash(seq) == Some(xxh3_64(payload.as_ref()))
    }

    /// Batches up to `seq` are lost for good.
    pub(super) fn lose(&mut self, seq: u64, fx: &mut impl Effects<P>) {
        if self.last.is_some() {
            self.counts.lost_batches += seq.saturating_sub(self.next());
            self.counts.resets += 1;
            self.forget_all(fx);
        }
        (self.open, self.partial) = (true, true);
    }

    pub(super) fn forget_all(&mut self, fx: &mut impl Effects<P>) {
        self.last = None;
        fx.clear();
    }
}
