//! Contradictions among a stream's batches.

use std::time::Duration;

use super::Machine;

impl<P: AsRef<[u8]>> Machine<P> {
    /// Batches contradict each other. `certain`: those of the live connection, and not one of them and an answer, which
    /// may have been given by the next life.
    pub(super) fn note_contradiction(&mut self, now: Duration, certain: bool) {
        self.counts.contradictions += 1;
        self.doubt.contradict(now, certain, self.config.probe_interval);
    }

    /// The engine is the one whose batches were applied: then a number too old to tell is of another one.
    pub(super) fn admit_suspect(&mut self, now: Duration) {
        if self.doubt.take_suspect() {
            self.note_contradiction(now, true);
        }
    }
}
