//! A second publisher comes and goes: what that does to the trust in a stream.

use super::Machine;
use super::state::Rivalry;

impl<P: AsRef<[u8]>> Machine<P> {
    /// Another publisher has connected.
    pub fn rival(&mut self) {
        self.counts.rivals += 1;
        self.rivalry = Rivalry::Present;
        // What was proven before does not show that it is still the engine that is read.
        self.life.doubt();
    }

    /// The others are gone.
    pub fn alone(&mut self) {
        if self.rivalry == Rivalry::Present {
            self.rivalry = Rivalry::None;
        }
    }

    /// True if what comes may be of somebody else than the engine.
    pub(super) fn is_contested(&self) -> bool {
        match self.rivalry {
            Rivalry::None => false,
            Rivalry::Present => true,
            // Nothing has come yet: what is held was verified with the new connection.
            Rivalry::Over => self.life.sample().is_some(),
        }
    }
}
