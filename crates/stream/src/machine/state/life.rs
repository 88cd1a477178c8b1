//! Life of the engine that the holdings, the live connection and the replay socket are of.
//!
//! Batches go on by number over a new connection, and an engine that has restarted counts like the one before. So after
//! a connection two things are to be proven: that the engine is the one whose batches are held, by the last batch before
//! the connection, and that the replay socket is that of the live connection, by a batch that came by it. Both are once
//! an answer has had them.

/// Proofs that the engine is the same, as far as they are there.
#[derive(Debug, Default)]
pub(in crate::machine) struct Life {
    /// The last batch before the present connection, by number and hash, until an answer had it.
    before: Option<(u64, u64)>,
    /// The last batch that came by the present connection.
    live: Option<(u64, u64)>,
    /// True if an answer had a batch of the present connection.
    same: bool,
}

impl Life {
    pub(in crate::machine) fn connected(&mut self) {
        (self.live, self.same) = (None, false);
    }

    /// The present connection is to be proven once more, by a batch that comes from now on.
    pub(in crate::machine) fn doubt(&mut self) {
        (self.live, self.same) = (None, false);
    }

    /// `last`: what was applied last.
    pub(in crate::machine) fn disconnected(&mut self, last: Option<(u64, u64)>) {
        self.before = self.before.or(last);
        self.connected();
    }

    /// Notes that what is held is a snapshot's, whose last batch `mark` is.
    pub(in crate::machine) fn restore(&mut self, mark: (u64, u64)) {
        self.before = Some(mark);
    }

    /// Notes that nothing is held any more.
    pub(in crate::machine) fn clear(&mut self) {
        self.before = None;
    }

    pub(in crate::machine) fn before(&self) -> Option<(u64, u64)> {
        self.before
    }

    /// The batch of the present connection that an answer must have, if none of the connection was in one yet.
    pub(in crate::machine) fn sample(&self) -> Option<(u64, u64)> {
        self.live.filter(|_| !self.same)
    }

    /// True if an answer had a batch of the present connection.
    pub(in crate::machine) fn is_same(&self) -> bool {
        self.same
    }

    /// Notes a batch of the present connection. True if it is the first.
    pub(in crate::machine) fn set_live(&mut self, seq: u64, hash: u64) -> bool {
        self.live.replace((seq, hash)).is_none()
    }

    /// Notes that an answer had a batch of the present connection. False if nothing has come since that was to be
    /// proven anew.
    pub(in crate::machine) fn prove_live(&mut self) -> bool {
        self.same |= self.live.is_some();
        self.live.is_some()
    }

    /// Notes that an answer had a batch of before the present connection.
    pub(in crate::machine) fn prove_before(&mut self, seq: u64, hash: u64) {
        self.before = self.before.filter(|before| *before != (seq, hash));
    }
}
