//! A busy stream that falls silent.
//!
//! Silence alone says little: most engines have nothing to do now and then. One that publishes several batches a second
//! and stops without a word either has nothing to do any more or hangs. So it is asked at once, and not trusted if it
//! does not answer in time, provided that it has answered before by the same connection. The next word from it is enough
//! to trust it again: the connection is still the same, so it is the same engine.

/// Number of batches in a row, without a pause between them, that are a load.
const BUSY: u32 = 20;

/// Silence of an engine that was busy on this connection.
#[derive(Debug, Default)]
pub(in crate::machine) struct Silence {
    /// Live batches in a row, without a pause.
    run: u32,
    /// True if the replay socket has answered since the live one was connected.
    answers: bool,
    /// True if the engine stopped in the middle of its load, and does not answer.
    open: bool,
}

impl Silence {
    pub(in crate::machine) fn connected(&mut self) {
        *self = Self::default();
    }

    pub(in crate::machine) fn note_answer(&mut self) {
        (self.answers, self.open) = (true, false);
    }

    pub(in crate::machine) fn is_open(&self) -> bool {
        self.open
    }

    /// Notes a live batch. `pauses`: whether there was a pause before it.
    pub(in crate::machine) fn note_batch(&mut self, pauses: bool) {
        self.run = if pauses { 1 } else { self.run.saturating_add(1) };
        self.open = false;
    }

    /// True if the engine was at work, and answers.
    pub(in crate::machine) fn was_busy(&self) -> bool {
        self.answers && self.run >= BUSY
    }

    /// Notes that an engine at work does not answer. True if that was not known.
    pub(in crate::machine) fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.open, true)
    }
}
