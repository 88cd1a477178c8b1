//! Place of a batch: applied now, kept for later, dropped as known, or the first of another epoch.

use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use super::goals::Goal;
use super::{Effects, Machine, Verdict};

/// A batch that waits for its turn.
#[derive(Debug)]
pub(super) struct StoredBatch<P> {
    pub(super) payload: P,
    /// True if the batch came over the live connection.
    pub(super) live: bool,
}

impl<P: AsRef<[u8]>> AsRef<[u8]> for StoredBatch<P> {
    fn as_ref(&self) -> &[u8] {
        self.payload.as_ref()
    }
}

/// Maximum reordering on a live connection, in batches.
const DISORDER: u64 = 16;

impl<P: AsRef<[u8]>> Machine<P> {
    /// Applies a batch of the live connection, keeps it for later, drops it, or begins another epoch with it.
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
            } else if known.is_none() && self.goal != Goal::Verify && self.is_late(seq) {
                // It was given up before it came.
            } else if known.is_none() && self.can_ask() && self.goal != Goal::Verify {
                self.doubt.suspect(seq);
                self.verify(now, fx);
            } else {
                self.begin_epoch(now, seq, payload, fx);
            }
        } else if self.has_turn(seq) {
            self.counts.recovered_batches += u64::from(self.goal == Goal::Gap);
            self.apply(now, seq, &payload, true, fx);
            self.drain(now, fx);
        } else if !self.open {
            self.wait(seq, StoredBatch { payload, live: true });
            self.missing(now, fx);
        } else if seq.saturating_add(DISORDER) < self.floor {
            self.begin_epoch(now, seq, payload, fx);
        }
        // Else it was given up before it came, and the blocks that it stores may have been removed since.
    }

    /// Begins another epoch with a batch of the live connection that cannot be of the applied batches' life.
    fn begin_epoch(&mut self, now: Duration, seq: u64, payload: P, fx: &mut impl Effects<P>) {
        if self.goal != Goal::Verify {
            self.note_contradiction(now, true);
        }
        if self.can_ask() {
            return self.begin_other_life(fx);
        }
        self.new_epoch(fx);
        self.read_whole(now, fx);
        self.place(now, seq, payload, fx);
    }

    /// Applies the waiting batches whose turn has come. Any left over show a gap.
    pub(super) fn drain(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        while let Some(seq) = self.waiting.first().filter(|seq| *seq <= self.next() || self.open) {
            let Some((_, StoredBatch { payload, live })) = self.waiting.pop_first() else { break };
            if self.has_turn(seq) {
                self.apply(now, seq, &payload, live, fx);
            } else if self.recent.hash(seq).is_some() && !self.same_as_applied(seq, &payload) {
                return self.begin_epoch(now, seq, payload, fx);
            }
        }
        if !self.waiting.is_empty() || self.owed.is_some() {
            self.missing(now, fx);
        } else if self.goal == Goal::Gap {
            self.go_live();
        }
    }

    /// Begins to fill a gap: a batch waits for one that has not come, or cannot be read itself.
    pub(super) fn missing(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        match self.goal {
            Goal::Live => {
                (self.goal, self.attempts) = (Goal::Gap, 0);
                self.limit = Some(now + self.config.replay_total_timeout);
                self.counts.gaps += 1;
            }
            // The answer has come, and shows that more is missing.
            Goal::Gap if self.waiting.is_empty() && self.ask.is_none() && self.ask_at.is_none() => {
                self.attempts += 1;
                if self.attempts >= self.config.replay_attempts {
                    return self.give_up(now, fx);
                }
            }
            _ => return,
        }
        if !self.can_ask() {
            self.ask_at = Some(now + self.config.reorder_grace);
        } else if self.ask.as_ref().is_none_or(|ask| !ask.answered) {
            self.ask_for_goal(now, fx);
        }
    }

    /// Applies a batch whose turn has come.
    pub(super) fn apply(&mut self, now: Duration, seq: u64, payload: &P, live: bool, fx: &mut impl Effects<P>) {
        let verdict = fx.apply(seq, payload, live);
        if verdict == Verdict::Refused {
            return self.refused(now, seq, live, fx);
        }
        if verdict == Verdict::UnknownEvents && self.unknown_events.add(now) {
            // Its own blocks go as well, and the engine would send it again the same way.
            (self.last, self.heal_at) = (Some(seq), None);
            return self.lose(seq.saturating_add(1), fx);
        }
        if self.last.is_none() {
            self.first = seq;
            self.partial &= seq > 0;
        }
        match verdict {
            Verdict::Cleared => {
                (self.partial, self.unverified, self.heal_at) = (false, false, None);
                self.unknown_events.clear();
            }
            Verdict::Partial | Verdict::UnknownEvents => self.partial = true,
            Verdict::Whole | Verdict::Refused => {}
        }
        self.count_lost(seq);
        self.accounted = self.accounted.max(seq.saturating_add(1));
        self.open = false;
        self.last = Some(seq);
        self.owed = self.owed.filter(|owed| *owed > seq);
        let hash = xxh3_64(payload.as_ref());
        self.recent.insert(seq, hash);
        if live {
            self.note_sample(now, seq, hash);
        }
    }

    /// Handles a batch that cannot be read, and may have removed blocks. The replay socket may still have it whole.
    fn refused(&mut self, now: Duration, seq: u64, live: bool, fx: &mut impl Effects<P>) {
        if live && self.last.is_some() && self.can_ask() {
            self.owed = self.owed.max(Some(seq));
            self.missing(now, fx);
        } else {
            self.lose(seq.saturating_add(1), fx);
            if live {
                self.heal_later(now);
            } else {
                self.heal_at = None; // Its replay was no better.
            }
        }
    }

    /// Keeps a batch for later.
    pub(super) fn wait(&mut self, seq: u64, batch: StoredBatch<P>) {
        let forgotten = self.waiting.insert(seq, batch);
        self.counts.overflowed_batches += forgotten.batches;
        self.owed = self.owed.max(forgotten.highest);
    }

    /// True if a batch may be one of those given up before the first one applied.
    fn is_late(&self, seq: u64) -> bool {
        seq < self.first && seq.saturating_add(DISORDER) > self.first
    }

    /// True if only batches are missing that the live connection has yet to bring: its engine is the one whose batches
    /// are held, it has skipped none, and has brought one since the question that showed that there are more.
    pub(super) fn live_catches_up(&self) -> bool {
        let reads = matches!(self.goal, Goal::Live | Goal::Gap);
        reads && self.waiting.is_empty() && self.live_heard > self.asked && self.life.before().is_none()
    }

    /// True if a batch is the next to be applied.
    pub(super) fn has_turn(&self, seq: u64) -> bool {
        if self.open { seq >= self.floor } else { seq == self.next() }
    }

    pub(super) fn next(&self) -> u64 {
        self.last.map_or(0, |last| last.saturating_add(1))
    }

    pub(super) fn same_as_applied(&self, seq: u64, payload: &P) -> bool {
        self.recent.hash(seq) == Some(xxh3_64(payload.as_ref()))
    }

    /// Gives up batches below `seq`, and clears the holdings.
    pub(super) fn lose(&mut self, seq: u64, fx: &mut impl Effects<P>) {
        self.count_lost(seq);
        if self.last.is_some() {
            // The batches applied after them are to be read again.
            self.owed = self.owed.max(self.last);
            self.counts.resets += 1;
            self.forget_all(fx);
        }
        self.owed = self.owed.filter(|owed| *owed >= seq);
        (self.open, self.floor, self.partial) = (true, seq, true);
    }

    /// Counts batches below `seq` that have not come as lost.
    fn count_lost(&mut self, seq: u64) {
        if seq > self.accounted {
            self.counts.lost_batches += seq - self.accounted;
            self.counts.gaps += u64::from(self.goal != Goal::Gap);
            self.accounted = seq;
        }
    }
}
